"""Title, owner and labels of journals: how they are set and changed, and listings by them."""

from __future__ import annotations

from typing import Any

from affinity.conversation.journal import Description, JournalFilter, JournalInfo
from affinity.provider.contract import Quotas
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import payloads
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.conversation.driver import KIND, Conversation, creation_of, new_input, new_start

ABOUT: Description = {"title": 'Refund of "é"', "owner": "ann", "labels": {"team": "eu", "tier": "gold"}}


class JournalDescriptionRules(Rules):
    """`Description`, `describe_journal` (contract: JournalProvider)."""

    async def test_a_journal_begins_with_its_description(self, cluster: Cluster) -> None:
        """Only with the first input: a later one leaves it, and none need be given (contract: JournalStart.about)."""
        talk = await Conversation.open(cluster)
        other: Description = {"title": "other"}
        for name, about in (("s", ABOUT), ("s", other), ("t", None), ("u", other)):
            await talk.journals.append_journal([new_input(name, start=new_start(name, about=about))])
        assert await self._described(talk) == {
            "s": ABOUT,
            "t": {"title": None, "owner": None, "labels": {}},
            "u": {"title": "other", "owner": None, "labels": {}},
        }

    async def test_an_empty_journal_is_created(self, cluster: Cluster) -> None:
        """Its instance comes with it and takes the first input. Creating it again finds it; a journal that began with
        an input is found, too (contract: JournalCreation.lineage).
        """
        talk = await Conversation.open(cluster)
        creation = creation_of("s", lineage=None, operator="", about=ABOUT)
        (made,) = await talk.journals.create_journals([creation])
        (again,) = await talk.journals.create_journals([creation])
        assert (made.outcome, again.outcome, again.journal_id) == ("created", "repeated", made.journal_id)
        assert await self._described(talk) == {"s": ABOUT}
        page = await talk.page()
        assert (page.journal_id, page.first_seq, page.last_seq, page.instance_status) == (
            made.journal_id, 1, 0, "pending"
        )  # fmt: skip
        peer = await cluster.worker("w")
        (item,) = await peer.take_instances(10)
        assert payloads(item) == ["start"]
        found = await talk.append(start=None)
        assert (found.outcome, found.seq, found.created) == ("appended", 1, False)
        await talk.journals.append_journal([new_input("t")])
        (result,) = await talk.journals.create_journals([creation_of("t", lineage=None, operator="")])
        assert result.outcome == "repeated"

    async def test_an_empty_journal_counts_for_the_quota(self, cluster: Cluster) -> None:
        """It counts like any instance of a client (contract: create_journals)."""
        talk = await Conversation.open(cluster)
        await talk.append()
        await talk.provider.set_quotas(Quotas(instances=1))
        (result,) = await talk.journals.create_journals([creation_of("t", lineage=None, operator="")])
        assert result.outcome == "over_quota"
        assert set(await self._described(talk)) == {"s"}

    async def test_a_description_is_changed_as_far_as_it_is_given(self, cluster: Cluster) -> None:
        """None removes; labels are replaced; a journal of another kind is left alone (contract: describe_journal)."""
        talk = await Conversation.open(cluster)
        await talk.append(start=new_start(about=ABOUT))

        async def described(changes: Description, kind: str = KIND) -> Any:
            assert await talk.journals.describe_journal("s", kind, changes) is (kind == KIND)
            return (await self._described(talk))["s"]

        assert await described({}) == ABOUT
        assert await described({"title": "b"}) == {**ABOUT, "title": "b"}
        assert await described({"owner": None}) == {**ABOUT, "title": "b", "owner": None}
        assert await described({"title": "no"}, "other") == {**ABOUT, "title": "b", "owner": None}
        assert await described({"labels": {"x": "y"}}) == {"title": "b", "owner": None, "labels": {"x": "y"}}
        assert await described({"title": None, "labels": {}}) == {"title": None, "owner": None, "labels": {}}
        assert not await talk.journals.describe_journal("none", KIND, {"title": "b"})
        assert await talk.numbers() == [1]

    async def test_journals_are_found_by_owner_and_labels(self, cluster: Cluster) -> None:
        """The current owner counts, and all of the labels have to match (contract: JournalFilter)."""
        talk = await Conversation.open(cluster)
        abouts: dict[str, Description] = {
            "a": {"owner": "ann", "labels": {"team": "eu", "tier": "gold"}},
            "b": {"owner": "ann", "labels": {"team": "us"}},
            "c": {"owner": "bob", "labels": {"team": "eu", "eu": "team"}},
            "d": {},
        }
        for name, about in abouts.items():
            await talk.journals.append_journal([new_input(name, start=new_start(name, about=about))])
        for where, names in (
            ({"owner": "ann"}, {"a", "b"}),
            ({"owner": "an"}, set()),
            ({"labels": {"team": "eu"}}, {"a", "c"}),
            ({"labels": {"eu": "team"}}, {"c"}),
            ({"labels": {"team": "eu", "tier": "gold"}}, {"a"}),
            ({"labels": {"team": "us", "tier": "gold"}}, set()),
            ({"labels": {"team": "eu"}, "owner": "bob"}, {"c"}),
            ({"labels": {"team": "eu"}, "kind": "other"}, set()),
            ({"labels": {"team": "eu"}, "prefix": "c"}, {"c"}),
            ({}, {"a", "b", "c", "d"}),
        ):
            assert set(await self._described(talk, **where)) == names, where
        await talk.journals.describe_journal("a", KIND, {"owner": "bob", "labels": {"tier": "gold"}})
        assert set(await self._described(talk, owner="ann")) == {"b"}
        assert set(await self._described(talk, owner="bob")) == {"a", "c"}
        assert set(await self._described(talk, labels={"team": "eu"})) == {"c"}
        assert set(await self._described(talk, labels={"tier": "gold"})) == {"a"}

    async def test_a_deleted_journal_has_no_description(self, cluster: Cluster) -> None:
        """Also not as an ancestor; another journal of its session begins without one (contract: delete_journal)."""
        talk = await Conversation.open(cluster)
        await talk.append(start=new_start(about=ABOUT))
        await talk.fork("f", about={"title": "of the fork"})
        own, parent = await talk.journals.get_lineage("f")
        assert (own.about, parent.about) == ({"title": "of the fork", "owner": None, "labels": {}}, ABOUT)
        await talk.provider.delete_instance(["s"], force=True)
        assert await talk.delete()
        _, parent = await talk.journals.get_lineage("f")
        assert parent.about == {"title": None, "owner": None, "labels": {}}
        await talk.append()
        assert await self._described(talk, labels={"team": "eu"}) == {}
        assert (await self._described(talk))["s"] == {"title": None, "owner": None, "labels": {}}

    async def _described(self, talk: Conversation, **where: Any) -> dict[str, Any]:
        rows = await talk.journals.list_journals(JournalFilter(**where), 100)
        return {row.session_id: _about(row) for row in rows}


def _about(row: JournalInfo) -> dict[str, Any]:
    return {"title": row.title, "owner": row.owner, "labels": dict(row.labels)}
