"""Journals as operators see them: listing, deletion with and without the record, retention."""

from __future__ import annotations

from typing import Any

import pytest

from affinity.conversation.journal import (
    EndOutcome,
    JournalFilter,
    JournalPruning,
    JournalRetention,
    NewRequest,
    NewRevisit,
    OpenDelegation,
    WakeEnd,
)
from affinity.conversation.store import listing
from affinity.provider.contract import InstanceUpdate
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import state, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.conversation.driver import (
    KIND,
    MANY,
    Conversation,
    ConversationOwner,
    new_input,
    new_start,
    output,
    prune,
)


class JournalAdministrationRules(Rules):
    """`list_journals`, `delete_journal`, `prune_journals` (contract: JournalProvider)."""

    # -- listing

    async def test_journals_are_listed_newest_first(self, cluster: Cluster) -> None:
        """Rows are ordered by creation, then by session; the cursor goes on behind the last row (contract:
        JournalFilter).
        """
        talk = await Conversation.open(cluster)
        for names in (["c", "a"], ["b"], ["e", "d"]):
            await talk.journals.append_journal([new_input(name) for name in names])
            await cluster.advance(1)
        assert await self._listed(talk) == ["e", "d", "b", "c", "a"]
        found: list[str] = []
        after = None
        while page := await talk.journals.list_journals(JournalFilter(after=after), 2):
            found += [row.session_id for row in page]
            after = (page[-1].created_at, page[-1].session_id)
        assert found == ["e", "d", "b", "c", "a"]

    async def test_journals_are_found_by_what_they_are(self, cluster: Cluster) -> None:
        """Each condition filters, alone and together: kind, beginning of the id, parent, whether it is closed, pending
        requests (contract: JournalFilter).
        """
        owner = await ConversationOwner.begin(cluster, "x/1")
        talk = owner.conversation
        await owner.commit_wake(requests=[NewRequest(request_id="r", kind="confirm", payload="1")])
        inputs = [
            new_input("x/2", start=new_start("x/2", parent="p"), closes=True),
            new_input("x%3", kind="other"),
            new_input("y/1", kind="other", start=new_start("y/1", parent="p")),
        ]
        await talk.journals.append_journal(inputs)
        wanted: list[tuple[dict[str, Any], set[str]]] = [
            ({"kind": "other"}, {"x%3", "y/1"}),
            ({"prefix": "x/"}, {"x/1", "x/2"}),
            ({"prefix": "x%"}, {"x%3"}),
            ({"parent": "p"}, {"x/2", "y/1"}),
            ({"closed": True}, {"x/2"}),
            ({"closed": False}, {"x/1", "x%3", "y/1"}),
            ({"with_requests": True}, {"x/1"}),
            ({"with_requests": True, "kind": "other"}, set()),
            ({"with_requests": True, "parent": "p"}, set()),
            ({"with_requests": True, "prefix": "x", "closed": False}, {"x/1"}),
            ({"parent": "p", "kind": "other", "prefix": "y", "closed": False}, {"y/1"}),
            ({"parent": "p", "kind": "other", "closed": True}, set()),
        ]
        for where, names in wanted:
            assert set(await self._listed(talk, **where)) == names, where

    async def test_a_row_says_where_a_journal_stands(self, cluster: Cluster) -> None:
        """Watermark, bounds, bytes, and pending work (contract: JournalInfo)."""
        owner = await ConversationOwner.begin(cluster, text="é" * 10)
        await owner.commit_wake(
            entries=[output("x" * 10)],
            requests=[
                NewRequest(request_id="r", kind="confirm", payload="1", expires_in=10.0),
                NewRequest(request_id="q", kind="confirm", payload="1"),
            ],
            revisits=[NewRevisit(key="k", delay=60.0)],
        )
        await owner.conversation.append(text="")
        (row,) = await owner.conversation.journals.list_journals(JournalFilter(), 10)
        page = await owner.conversation.page()
        assert (row.session_id, row.journal_id, row.kind, row.parent) == ("s", page.journal_id, page.kind, None)
        assert (row.processed, row.first_seq, row.last_seq, row.closed) == (1, 1, 3, False)
        assert (row.size, row.pending_requests, row.pending_revisits) == (22 + 12 + 2, 2, 1)
        assert row.created_at <= row.updated_at
        await cluster.advance(11)
        (row,) = await owner.conversation.journals.list_journals(JournalFilter(), 10)
        assert row.pending_requests == 1

    async def test_a_row_has_the_first_input_that_waits(self, cluster: Cluster) -> None:
        """The input may come from a base; output behind the watermark is not an input (contract: JournalInfo)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation

        async def pending_from() -> dict[str, int | None]:
            rows = await talk.journals.list_journals(JournalFilter(), 10)
            return {row.session_id: row.pending_from for row in rows}

        assert await pending_from() == {"s": 1}
        await owner.commit_wake(entries=[output(), output()])
        assert await pending_from() == {"s": None}
        await talk.append()
        await owner.commit_wake(processed=1, wake_id="w2", entries=[output()])
        await (await talk.fork("f")).append()
        assert await pending_from() == {"s": 4, "f": 4}
        await owner.commit_wake(wake_id="w3")
        assert await pending_from() == {"s": None, "f": 4}

    async def test_a_row_has_the_status_of_the_conversation(self, cluster: Cluster) -> None:
        """The first status that holds; a filter finds it (contract: ConversationStatus, JournalFilter.status)."""

        async def done(name: str, **write: Any) -> ConversationOwner:
            owner = await ConversationOwner.begin(cluster, name)
            await owner.commit_wake(**write)
            return owner

        request = NewRequest(request_id="r", kind="confirm", payload="1")
        expired = NewRequest(request_id="r", kind="confirm", payload="1", expires_in=10.0)
        idle = await done("idle")
        asks = await done("asks", requests=[request])
        await done("expired", requests=[expired])
        await asks.conversation.journals.append_journal([new_input("waits")])
        works = await done("works")
        await works.commit(
            await works.new_write(wake_id="w2"),
            work_items=[work_item(works.at, 1)],
            update=InstanceUpdate(status="running"),
        )
        ends: dict[str, EndOutcome] = {"failed": "failed", "resumed": "failed", "rescheduling": "retried"}
        for name, outcome in ends.items():
            paused = await done(name, requests=[request])
            await paused.conversation.append()
            failing = {"wake_id": "w2", "processed": 1, "entries": [output(wake_id="w2")]}
            await paused.commit(await paused.new_write(end=WakeEnd(outcome=outcome, read=2), **failing), consumed=())
            if name != "failed":
                await paused.conversation.append()
        other = await done("other")
        await other.commit(await other.new_write(wake_id="w2"), custom_status='"failed"')
        suspended = await done("suspended", requests=[request])
        assert await suspended.peer.suspend(suspended.at)
        child = [OpenDelegation("d", "child")]
        later = [NewRevisit(key="k", delay=1.0)]
        await done("delegates", delegations=child, requests=[expired])
        await done("later", revisits=later)
        await done("asks too", delegations=child, revisits=later, requests=[request])
        reads = await done("reads", delegations=child)
        await reads.conversation.append()
        settled = await done("settled", delegations=child, revisits=later)
        await settled.commit_wake(ended_delegations=["d"], ended_revisits=["k"])
        alone = await done("alone", delegations=child, revisits=later)
        await alone.conversation.provider.delete_instance(["alone"], force=True)
        closed = await done("closed", requests=[request])
        await closed.conversation.append(closes=True)
        ended = await done("ended", requests=[request])
        await ended.commit(await ended.new_write(wake_id="w2"), update=InstanceUpdate(status="cancelled"))
        gone = await done("gone", requests=[request])
        await gone.conversation.provider.delete_instance(["gone"], force=True)
        await cluster.advance(11)
        expected = {
            "idle": {"idle", "expired", "other", "gone", "settled", "alone"},
            "waiting": {"delegates", "later"},
            "requires_action": {"asks", "asks too"},
            "running": {"waits", "works", "resumed", "reads"},
            "failed": {"failed", "suspended"},
            "rescheduling": {"rescheduling"},
            "terminated": {"closed", "ended"},
        }
        talk = idle.conversation
        for status, names in expected.items():
            assert set(await self._listed(talk, status=status)) == names, status
            for name in names:
                (row,) = await talk.journals.list_journals(JournalFilter(session_id=name), 10)
                assert (row.session_id, row.status) == (name, status)
        assert await talk.journals.list_journals(JournalFilter(session_id="none"), 10) == []
        assert set(await self._listed(talk, status="running", kind=KIND, prefix="wa")) == {"waits"}
        assert await self._listed(talk, status="running", closed=True) == []

    async def test_a_status_is_found_among_many_others(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever number of journals is between, each once and in order, by pages too (contract: list_journals)."""
        monkeypatch.setattr(listing, "MAX_PAGE", 3)
        talk = await Conversation.open(cluster)
        rare = {0, 1, 7, 15, 19}
        for number in range(20):
            await talk.journals.append_journal([new_input(f"{number:02}", closes=number in rare)])
        wanted = [f"{number:02}" for number in sorted(rare, reverse=True)]
        for limit in (1, 2, 3):
            found: list[str] = []
            after = None
            while page := await talk.journals.list_journals(JournalFilter(status="terminated", after=after), limit):
                assert len(page) == min(limit, len(wanted) - len(found))
                found += [row.session_id for row in page]
                after = (page[-1].created_at, page[-1].session_id)
            assert found == wanted
        assert await self._listed(talk, status="terminated", most=3) == ["19"]
        assert await self._listed(talk, status="terminated", most=4) == ["19", "15"]

    async def test_journals_are_listed_by_their_last_change(self, cluster: Cluster) -> None:
        """The second time is not included (contract: JournalFilter.updated_before)."""
        talk = await Conversation.open(cluster)
        for name in ("a", "b", "c", "a"):
            await cluster.advance(10)
            await talk.journals.append_journal([new_input(name)])
        b, c = [
            row.updated_at for row in await talk.journals.list_journals(JournalFilter(), MANY) if row.session_id != "a"
        ][::-1]
        assert await self._listed(talk, updated_since=c) == ["c", "a"]
        assert await self._listed(talk, updated_since=b, updated_before=c) == ["b"]

    async def _listed(self, talk: Conversation, **where: Any) -> list[str]:
        return [row.session_id for row in await talk.journals.list_journals(JournalFilter(**where), MANY)]

    # -- deletion

    async def test_a_deleted_journal_is_gone(self, cluster: Cluster) -> None:
        """Its entries, requests, revisits and streams go too; the next journal begins at 1 with another id (contract:
        delete_journal).
        """
        owner = await ConversationOwner.begin(cluster, event_id="e")
        talk = owner.conversation
        await owner.commit_wake(
            entries=[output()],
            requests=[NewRequest(request_id="r", kind="confirm", payload="1")],
            revisits=[NewRevisit(key="k", delay=0.0)],
        )
        await talk.stream(1, wake_id="w2")
        old = (await talk.page()).journal_id
        assert await talk.journals.delete_journal(["none", "s", "s"]) == [False, True, False]
        assert await talk.journals.get_pending(["s"], limit=1) == [None]
        assert await talk.journals.list_journals(JournalFilter(), 10) == []
        assert (await talk.append(start=None)).outcome == "unknown"
        again = await talk.append(event_id="e")
        assert (again.outcome, again.seq, again.created, again.journal_id != old) == ("appended", 1, True, True)
        assert [await talk.requests(), await talk.revisits(), await talk.streamed()] == [[], [], []]
        assert await talk.numbers(wake_id="w1") == []

    async def test_the_record_takes_its_journal_with_it(self, cluster: Cluster) -> None:
        """A deletion of the record of a session deletes its journal, and no other (contract: delete_journal)."""
        talk, other = [await Conversation.open(cluster, name) for name in ("s", "t")]
        store = await cluster.states()
        for conversation in (talk, other):
            await conversation.append()
            await store.save(state(conversation.session_id))
        await store.delete(["s"])
        found = await talk.journals.get_pending(["s", "t"], limit=1)
        assert [work is not None for work in found] == [False, True]
        assert (await talk.append()).created

    # -- retention

    async def test_entries_are_removed_by_number_age_and_size(self, cluster: Cluster) -> None:
        """The oldest first, as many as each bound needs, in all journals (contract: JournalRetention)."""
        owners = [await ConversationOwner.begin(cluster, name, event_id="e") for name in ("s", "t")]
        for owner in owners:
            await owner.commit_wake(entries=[output("x") for _ in range(9)])
        await cluster.advance(100)
        for owner in owners:
            await owner.commit_wake(entries=[output("x", "w2") for _ in range(5)], wake_id="w2")
        talk = owners[0].conversation
        steps: list[tuple[dict[str, Any], int, int]] = [
            ({"entries": 15}, 0, 1),
            ({"entries": 13}, 4, 3),
            ({"age": 1000.0}, 0, 3),
            ({"age": 50.0}, 16, 11),
            ({"size": 15}, 0, 11),
            ({"size": 10, "age": 1000.0, "entries": 5}, 4, 13),
            ({}, 0, 13),
        ]
        for bounds, removed, first in steps:
            assert await prune(talk, **bounds) == removed, bounds
            for owner in owners:
                page = await owner.conversation.page()
                assert (page.first_seq, [entry.seq for entry in page.entries]) == (first, list(range(first, 16)))
        assert [row.size for row in await talk.journals.list_journals(JournalFilter(), 10)] == [9, 9]

    async def test_a_pruned_journal_goes_on(self, cluster: Cluster) -> None:
        """Numbers continue when all entries are gone; the id of a removed entry may be used again (contract:
        NewEntry.event_id).
        """
        owner = await ConversationOwner.begin(cluster, event_id="e")
        talk = owner.conversation
        await owner.commit_wake(entries=[output(), output()])
        assert await prune(talk, entries=0) == 3
        page = await talk.page()
        assert (page.first_seq, page.last_seq, page.entries, page.more) == (4, 3, [], False)
        assert await prune(talk, entries=0, age=0.0, size=0) == 0
        again = await talk.append(event_id="e")
        assert (again.outcome, again.seq) == ("appended", 4)
        assert [entry.seq for entry in (await talk.pending()).inputs] == await talk.numbers() == [4]

    async def test_inputs_that_wait_are_kept(self, cluster: Cluster) -> None:
        """Unprocessed inputs stay, and all entries behind them (contract: JournalRetention)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        await talk.append()
        await owner.commit_wake(processed=1, entries=[output(), output()])
        assert await prune(talk, entries=0, age=0.0, size=0) == 1
        assert await talk.numbers() == [2, 3, 4]
        await owner.commit_wake(wake_id="w2")
        assert await prune(talk, entries=1) == 2

    async def test_entries_of_pending_requests_are_kept(self, cluster: Cluster) -> None:
        """The entries of the wake that made it stay until the request is resolved (contract: JournalRetention)."""
        owner = await ConversationOwner.begin(cluster)
        talk = owner.conversation
        request = NewRequest(request_id="r", kind="confirm", payload="1")
        await owner.commit_wake(entries=[output(), output()], requests=[request])
        await owner.commit_wake(entries=[output()], wake_id="w2")
        assert await prune(talk, entries=0) == 1
        assert await talk.numbers() == [2, 3, 4]
        await owner.commit_wake(ended_requests=["r"], wake_id="w3")
        assert await prune(talk, entries=0) == 3

    async def test_pruning_goes_through_the_journals_in_steps(self, cluster: Cluster) -> None:
        """Each step begins where the one before has ended, also in the middle of a journal, and passes by what must be
        kept; a dry run finds what they remove, and changes nothing (contract: prune_journals).
        """
        owners = [await ConversationOwner.begin(cluster, name, event_id="e") for name in ("s", "t", "u")]
        for owner in owners:
            await owner.commit_wake(entries=[output() for _ in range(4)])
        talk = owners[0].conversation
        await Conversation(talk.provider, "waits").append()
        keep = JournalRetention(entries=0)
        found = await talk.journals.prune_journals(keep, limit=1, dry_run=True)
        assert (found.entries, found.after) == (15, None)
        at: int | None = 0
        steps = []
        while at is not None:
            step = await talk.journals.prune_journals(keep, limit=7, after=at)
            assert step.after is None or step.after >= at
            steps.append(step.entries)
            at = step.after
        assert steps == [7, 7, 1]
        assert await talk.journals.prune_journals(keep, limit=7, dry_run=True) == JournalPruning(entries=0, after=None)

    async def test_bounds_that_an_index_serves(self, cluster: Cluster) -> None:
        """Large ones are as exact as small ones (contract: prune_journals)."""
        for number, name in enumerate(("s", "t", "u")):
            owner = await ConversationOwner.begin(cluster, name, event_id="e", text="x" * 8)
            texts = ["x" * 1000 if number == 1 else "x"] * (300 + number)
            await owner.commit_wake(entries=[output(text) for text in texts])
        talk = owner.conversation
        infos = {row.session_id: row for row in await talk.journals.list_journals(JournalFilter(), 10)}
        assert await prune(talk, entries=303) == await prune(talk, size=infos["t"].size) == 0
        assert await prune(talk, entries=301) == 1 + 2
        assert await prune(talk, size=infos["t"].size - 1 - 10) > 0
        assert await prune(talk, entries=100, size=100_000) > 0
        left = await talk.journals.list_journals(JournalFilter(), 10)
        assert [row.last_seq - row.first_seq + 1 <= 100 and row.size <= 100_000 for row in left] == [True] * 3
