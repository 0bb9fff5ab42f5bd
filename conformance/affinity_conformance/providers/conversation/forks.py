"""Forks need parts of the journals that they continue: deletion and retention keep exactly these."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from typing import Any

from affinity.conversation.journal import (
    SEQ_MARK,
    InheritedRequest,
    JournalCreation,
    JournalFilter,
    JournalRetention,
    NewEntry,
    NewRequest,
    Revisit,
)
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import payloads, state
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.conversation.driver import (
    Conversation,
    ConversationOwner,
    creation_of,
    new_start,
    output,
    prune,
)
from affinity_conformance.providers.conversation.requests import answer, new_request


async def _creation(talk: Conversation, name: str, up_to: int | None = None, **fields: Any) -> JournalCreation:
    """The creation of a journal that continues another one, up to a number."""
    return await talk.fork_of(name, up_to, message=f"[{SEQ_MARK}]", **fields)


async def _fork(talk: Conversation, name: str, up_to: int | None, **fields: Any) -> Conversation:
    """A journal that continues another one, up to a number."""
    (result,) = await talk.journals.create_journals([await _creation(talk, name, up_to, **fields)])
    assert result.outcome == "created"
    assert up_to in {None, result.last_seq}
    return Conversation(talk.provider, name)


async def _paused(cluster: Cluster, *requests: NewRequest) -> ConversationOwner:
    """Two wakes: an input and an answer, then a request; the second has asked."""
    owner = await ConversationOwner.begin(cluster, text="1")
    await owner.commit_wake(entries=[output("2")])
    await owner.conversation.append(text="3")
    await owner.commit_wake(wake_id="w2", entries=[output("4", wake_id="w2")], requests=requests)
    return owner


async def _ids(talk: Conversation) -> list[str]:
    return [request.request_id for request in await talk.requests()]


async def _messages(cluster: Cluster, *session_ids: str) -> dict[str, list[str]]:
    """Payloads of the messages that wait for the instances of these sessions."""
    worker = await cluster.worker("reader")
    found = {item.instance_id: [*payloads(item)] for item in await worker.take_instances(100)}
    return {name: found[name] for name in session_ids}


async def _talk(cluster: Cluster, name: str = "s") -> Conversation:
    """An input and four entries of the wake that has processed it."""
    owner = await ConversationOwner.begin(cluster, name, event_id="e", text="1")
    await owner.commit_wake(entries=[output(str(number)) for number in range(2, 6)])
    return owner.conversation


class JournalForkRules(Rules):
    """`delete_journal` and `prune_journals` of journals that others continue."""

    async def test_a_deleted_base_leaves_what_its_forks_have(self, cluster: Cluster) -> None:
        """Forks read on from it, know its event ids, and a new journal of its session is another one (contract:
        delete_journal).
        """
        talk = await _talk(cluster)
        forks = [await _fork(talk, "three", 3), await _fork(talk, "five", 5)]
        for fork in forks:
            await fork.append(text="own")
        assert await talk.delete()
        assert [await fork.texts() for fork in forks] == [["1", "2", "3", "own"], ["1", "2", "3", "4", "5", "own"]]
        assert await forks[0].texts(newest_first=True, limit=2) == ["own", "3"]
        assert await forks[0].texts(kinds=["agent.message"], wake_id="w1") == ["2", "3"]
        assert (await forks[0].append(text="1", event_id="e")).outcome == "repeated"
        again = await talk.append(event_id="e", start=new_start(generation="again"))
        assert (again.outcome, again.seq, again.created) == ("appended", 1, True)
        assert await forks[0].texts(limit=1) == ["1"]
        assert await forks[0].delete()
        assert await forks[1].texts(after=3) == ["4", "5", "own"]
        rows = await talk.journals.list_journals(JournalFilter(), 10)
        assert {row.session_id for row in rows} == {"five", "s"}

    async def test_what_was_made_from_a_journal_is_listed(self, cluster: Cluster) -> None:
        """Only direct descendants are listed, and no deleted ones (contract: JournalFilter.made_from)."""
        talk = await _talk(cluster)
        forks = [await _fork(talk, name, at) for name, at in (("three", 3), ("five", 5), ("gone", 5))]
        await _fork(forks[0], "of three", 3)
        assert await forks[2].delete()

        async def listed(journal_id: int, **where: Any) -> set[str]:
            found = await talk.journals.list_journals(JournalFilter(made_from=journal_id, **where), 10)
            return {row.session_id for row in found}

        journal_id = (await talk.page()).journal_id
        assert await listed(journal_id) == {"three", "five"}
        assert await listed(journal_id, prefix="f") == {"five"}
        assert await listed((await forks[0].page()).journal_id) == {"of three"}
        assert await listed((await forks[1].page()).journal_id) == set()

    async def test_a_fork_has_the_pending_requests_of_its_base(self, cluster: Cluster) -> None:
        """Each side answers its own, in either order (contract: JournalCreation.requests)."""
        owner = await _paused(cluster, new_request("b", expires_in=60.0), new_request("a", kind="tool", payload="2"))
        talk = owner.conversation
        fork = await _fork(talk, "fork", None, requests=None)
        other = await _fork(fork, "other", 4, requests=None)
        assert await _ids(talk) == ["b", "a"]
        assert await talk.requests() == await fork.requests() == await other.requests()
        assert (await answer(fork, "b", text="no")).seq == 5
        assert [await _ids(talk), await _ids(fork), await _ids(other)] == [["b", "a"], ["a"], ["b", "a"]]
        assert (await answer(talk, "b", text="yes")).seq == 5
        assert (await answer(talk, "a", "tool")).outcome == "appended"
        assert [await _ids(talk), await _ids(fork)] == [[], ["a"]]
        assert (await answer(fork, "b")).outcome == "not_pending"
        assert ((await talk.texts())[4], (await fork.texts())[4]) == ("yes", "no")
        plain = await _fork(other, "plain", 4)
        assert await plain.requests() == []

    async def test_a_fork_by_a_wake_has_the_requests_of_that_wake(self, cluster: Cluster) -> None:
        """Requests that the wake has resolved are not copied (contract: JournalCreation.requests)."""
        owner = await _paused(cluster, new_request("gone"), new_request("old"))
        talk = owner.conversation
        creation = await _creation(talk, "fork", requests=None)
        write = await owner.new_write(
            wake_id="w3",
            entries=[output("5", wake_id="w3")],
            requests=[new_request("new")],
            ended_requests=["gone"],
            creations=[creation],
        )
        assert (await owner.commit(write)).committed
        fork = Conversation(talk.provider, "fork")
        assert await fork.texts() == ["1", "2", "3", "4", "5"]
        assert await _ids(fork) == ["old", "new"]
        assert await fork.requests() == await talk.requests()

    async def test_a_fork_has_an_answer_or_its_request(self, cluster: Cluster) -> None:
        """An answer that races with the fork is in it, or its request is, and never both (contract:
        JournalCreation.requests).
        """
        names = [f"r{number}" for number in range(12)]
        owner = await _paused(cluster, *map(new_request, names))
        talk, other = owner.conversation, await Conversation.open(cluster)
        for name in names:
            creation = await _creation(talk, f"fork {name}", requests=None)
            fork = Conversation(talk.provider, creation.session_id)
            await concurrently(
                partial(talk.journals.create_journals, [creation]), partial(answer, other, name, text=name)
            )
            assert (name in await _ids(fork)) is (name not in await fork.texts())

    async def test_a_fork_is_given_the_requests_of_an_earlier_entry(self, cluster: Cluster) -> None:
        """They expire as those that are still pending in the base, and else never (contract: InheritedRequest)."""
        owner = await _paused(cluster, new_request("still", expires_in=60.0), new_request("gone", expires_in=60.0))
        talk = owner.conversation
        still, gone = await talk.requests()
        assert (await answer(talk, "gone")).seq == 5
        given = [
            InheritedRequest(request.request_id, request.kind, request.payload, request.wake_id, 4, request.created_at)
            for request in (gone, still)
        ]
        fork = await _fork(talk, "fork", 4, requests=given)
        assert await fork.requests() == [gone._replace(expires_at=None), still]
        assert (await answer(fork, "gone", wake_id="w2")).outcome == "appended"
        refused = await _creation(talk, "late", 4, requests=None)
        assert [result.outcome for result in await talk.journals.create_journals([refused])] == ["beyond"]
        assert await prune(fork, entries=0) > 0
        assert await fork.numbers() == [4, 5]
        await cluster.advance(61)
        assert await fork.requests() == []
        late = await _fork(talk, "late", 5, requests=None)
        assert [(request.request_id, request.expired) for request in (await late.pending()).requests] == [
            ("still", True)
        ]

    async def test_a_creation_has_the_requests_and_revisits_that_it_is_given(self, cluster: Cluster) -> None:
        """They keep their times, as in an import. The instance is notified (contract: JournalCreation.revisits)."""
        owner = await _paused(cluster, new_request("theirs"))
        talk = owner.conversation
        now = (await talk.requests())[0].created_at
        given = InheritedRequest("own", "confirm", "{}", "w9", 1, now, now + timedelta(seconds=60))
        revisit = Revisit("k", now + timedelta(seconds=30), 2, "later", '{"n":1}', "w9")
        made = await _fork(talk, "made", None, requests=[given], revisits=[revisit])
        work = await made.pending()
        assert (list(work.revisits), list(work.due)) == ([revisit], [])
        assert [(request.request_id, request.expires_at) for request in work.requests] == [("own", given.expires_at)]
        assert await _messages(cluster, "made") == {"made": ["start", "[4]"]}
        await cluster.advance(61)
        work = await made.pending()
        assert (list(work.due), [request.expired for request in work.requests]) == ([revisit], [True])

    async def test_the_instance_of_a_fork_is_notified_of_a_request_that_expires(self, cluster: Cluster) -> None:
        """It is notified as for inputs that wait, and for nothing else (contract: JournalCreation.message)."""
        owner = await _paused(cluster, new_request("r"))
        await _fork(owner.conversation, "waits", None, requests=None)
        await owner.commit_wake(requests=[new_request("q", expires_in=60.0)], wake_id="w3")
        await _fork(owner.conversation, "expires", None, requests=None)
        found = await _messages(cluster, "waits", "expires")
        assert found == {"waits": ["start"], "expires": ["start", "[4]"]}

    async def test_what_an_answer_needs_that_waits_is_kept(self, cluster: Cluster) -> None:
        """Entries stay until a wake has processed the answer, also in a fork that inherits it (contract:
        JournalRetention).
        """
        owner = await _paused(cluster, new_request())
        talk = owner.conversation
        await talk.append(text="5")
        assert (await answer(talk, text="yes")).seq == 6
        fork = await _fork(talk, "fork", 6)
        for conversation in (talk, fork):
            await prune(conversation, entries=0)
            assert await conversation.texts() == ["4", "5", "yes"]
        assert await fork.delete()
        await owner.commit_wake(wake_id="w3")
        await prune(talk, entries=0)
        assert await talk.texts() == []

    async def test_pruning_keeps_what_removed_entries_have_used(self, cluster: Cluster) -> None:
        """Usage is kept for each writer. A fork keeps the usage that it had from its base when it gave the base up, and
        passes it on to later forks (contract: JournalLineage.used).
        """
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation

        async def used(of: Conversation) -> Any:
            return json.loads((await of.journals.get_lineage(of.session_id))[0].used)

        payloads = [
            '{"content":"\\u0000 \\"usage\\":{\\"n\\":7}","usage":{"n":1,"m":2}}',
            '{"usage": {"n": 10, "text": "x"}}',
            '{"content":{"usage":{"n":7}}}',
            '{"usage":7}',
            '{"usage":null}',
            '["usage"]',
            '"usage"',
            "no JSON with usage",
        ]
        await owner.commit_wake(
            wake_id="w-1-1", entries=[output(wake_id="w-1-1", payload=payload) for payload in payloads]
        )
        own = NewEntry(kind="user.message", payload='{"usage":{"n":100}}', is_input=True)
        await talk.append(entry=own)
        await owner.commit_wake(wake_id="v-1-1", entries=[output(wake_id="v-1-1", payload='{"usage":{"n":1000}}')])
        before, whole = await _fork(talk, "before", 3), await _fork(talk, "whole", 11)
        assert await used(talk) == {}
        await prune(talk, entries=0, age=0.0)
        spent = {"w": [2, {"n": 11, "m": 2}], "v": [2, {"n": 1100}]}
        assert await used(talk) == spent
        assert await used(whole) == spent
        assert await used(before) == {"w": [2, {"n": 11, "m": 2}]}
        after = await _fork(talk, "after", 11)
        assert await used(after) == spent
        await talk.append(entry=own)
        await owner.commit_wake(wake_id="v-1-2", entries=[output(wake_id="v-1-2", payload='{"usage":{"n":0.5}}')])
        assert (await talk.journals.prune_journals(JournalRetention(entries=0), limit=10, dry_run=True)).entries == 2
        assert await used(talk) == spent
        await prune(talk, entries=0)
        assert await used(talk) == {**spent, "v": [4, {"n": 1200.5}]}
        assert await used(after) == spent

    async def test_the_record_of_a_base_is_deleted_alone(self, cluster: Cluster) -> None:
        """Entries of forks stay when the record takes the journal with it (contract: delete_journal)."""
        talk = await _talk(cluster)
        store = await cluster.states()
        await store.save(state("s"))
        fork = await _fork(talk, "fork", 4)
        assert await store.delete(["s"]) == ["s"]
        assert await talk.journals.get_pending(["s"], limit=1) == [None]
        assert await fork.texts() == ["1", "2", "3", "4"]

    async def test_forks_of_forks_outlive_the_forks_between(self, cluster: Cluster) -> None:
        """The remaining forks have all their entries, in each order of deletion (contract: delete_journal)."""
        for order in (("s", "b", "c"), ("c", "b", "s"), ("b", "s", "c")):
            talks = {"s": await _talk(cluster)}
            for name, base, up_to in (("b", "s", 3), ("c", "b", 4), ("d", "c", 5), ("low", "c", 2)):
                talks[name] = await _fork(talks[base], name, up_to)
                await talks[name].append(text=f"of {name}", start=None)
            for name in order:
                assert await talks[name].delete()
                assert await talks["d"].texts() == ["1", "2", "3", "of b", "of c", "of d"]
                assert await talks["low"].texts() == ["1", "2", "of low"]
            for name in ("d", "low"):
                assert await talks[name].delete()
            assert await talks["s"].journals.list_journals(JournalFilter(), 10) == []
            assert await prune(talks["s"], entries=0) == 0
            await talks["s"].provider.delete_instance([*talks], force=True)

    async def test_retention_keeps_what_forks_have(self, cluster: Cluster) -> None:
        """Entries of a base stay as long as a fork has them; a fork's own retention gives them up (contract:
        JournalRetention).
        """
        talk = await _talk(cluster)
        fork = await _fork(talk, "fork", 3)
        await fork.append(text="own")
        owner = await ConversationOwner.of(await cluster.worker("b"), "fork")
        await owner.commit_wake(entries=[output("6")])
        assert await prune(talk, size=12) == 0
        assert await fork.texts() == ["1", "2", "3", "own", "6"]
        assert await prune(talk, entries=4) == 2
        assert await fork.texts() == ["2", "3", "own", "6"]
        assert (await fork.page()).first_seq == 2
        assert await talk.numbers() == [2, 3, 4, 5]
        assert await prune(talk, entries=2) == 4
        assert (await fork.numbers(), await talk.numbers()) == ([4, 5], [4, 5])
        assert await prune(talk, entries=0) == 4
        assert (await fork.page()).first_seq == (await talk.page()).first_seq == 6
        assert (await fork.append(text="next")).seq == 6

    async def test_inputs_that_wait_in_a_fork_are_kept(self, cluster: Cluster) -> None:
        """Inputs that the fork has from its base, and that no wake of it has processed (contract: JournalRetention)."""
        talk = await _talk(cluster)
        await talk.append(text="waits")
        fork = await _fork(await _fork(talk, "between", 6), "fork", 6)
        assert await prune(talk, entries=0) > 0
        assert await fork.texts() == await talk.texts() == ["waits"]

    async def test_a_fork_is_as_old_as_itself(self, cluster: Cluster) -> None:
        """Entries that it continues are not removed from it before it has the age (contract: JournalRetention)."""
        talk = await _talk(cluster)
        await cluster.advance(100)
        fork = await _fork(talk, "fork", 3)
        assert await prune(talk, age=50.0) == 0
        assert await fork.numbers() == [1, 2, 3]
        await cluster.advance(100)
        await prune(talk, age=50.0)
        assert await fork.numbers() == await talk.numbers() == []

    async def test_an_import_is_as_old_as_its_entries(self, cluster: Cluster) -> None:
        """Entries that came with their time are removed by it (contract: JournalRetention)."""
        other = await _talk(cluster)
        at = (await other.page()).entries[0].recorded_at
        entries = [
            NewEntry(kind="user.note", payload=f'"{days}"', recorded_at=at - timedelta(days=days)) for days in (3, 2, 0)
        ]
        talk = await other.create(creation_of("i", lineage="import", operator="import", entries=entries))
        assert await prune(talk, age=86_400.0) == 2
        assert await talk.numbers() == [3]
