"""The requests that wait for an answer, over all journals."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from affinity.conversation.journal import Answer, Description, Request, RequestFilter
from affinity.conversation.store import listing
from affinity.provider.contract import InstanceUpdate
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.conversation.driver import KIND, Conversation, ConversationOwner, new_start
from affinity_conformance.providers.conversation.requests import answer, new_request


class OpenRequestRules(Rules):
    """`list_requests` (contract: JournalProvider)."""

    async def test_requests_of_all_journals_are_listed_oldest_first(self, cluster: Cluster) -> None:
        """Rows have their conversations; requests of one wake keep its order (contract: Request)."""
        about: Description = {"title": "Refund", "owner": "ann", "labels": {"team": "eu"}}
        first = await self._ask(cluster, "b", new_request("2", expires_in=60.0), new_request("10"), about=about)
        await cluster.advance(1)
        await self._ask(cluster, "a", new_request("r", kind="tool", payload="7"))
        found = await self._open(first)
        assert [(request.session_id, request.request_id) for request in found] == [("b", "2"), ("b", "10"), ("a", "r")]
        one, _, other = found
        page = await first.page()
        assert (one.journal_id, one.journal_kind, one.title, one.owner, one.labels) == (
            page.journal_id, KIND, "Refund", "ann", {"team": "eu"}
        )  # fmt: skip
        assert (one.kind, one.payload, one.wake_id) == ("confirm", '{"tool":"refund"}', "w1")
        (row, _) = await first.requests()
        assert (one.created_at, one.expires_at) == (row.created_at, row.created_at + timedelta(seconds=60))
        assert (other.title, other.owner, other.labels, other.expires_at) == (None, None, {}, None)
        assert (other.kind, other.payload) == ("tool", "7")

    async def test_what_takes_no_answer_is_not_listed(self, cluster: Cluster) -> None:
        """Answered, dropped, expired and resolved requests, and requests of what has ended or is deleted. An answer
        creates an instance that is gone again (contract: RequestFilter).
        """
        talks = {}
        for name in ("answered", "dropped", "closed", "deleted", "gone", "open"):
            talks[name] = await self._ask(cluster, name, new_request())
        await self._ask(cluster, "expired", new_request(expires_in=10.0))
        ended = await ConversationOwner.begin(cluster, "ended")
        await ended.commit_wake(requests=[new_request()])
        resolved = await ConversationOwner.begin(cluster, "resolved")
        await resolved.commit_wake(requests=[new_request()])
        talk = talks["open"]
        assert len(await self._open(talk)) == 9
        assert (await answer(talks["answered"])).outcome == "appended"
        await talks["dropped"].append(drops=True)
        await talks["closed"].append(closes=True)
        for name in ("deleted", "gone"):
            await talk.provider.delete_instance([name], force=True)
        await talks["deleted"].delete()
        await ended.commit(await ended.new_write(wake_id="w2"), update=InstanceUpdate(status="cancelled"))
        await resolved.commit_wake(ended_requests=["r"], wake_id="w2")
        await cluster.advance(11)
        assert {request.session_id for request in await self._open(talk)} == {"gone", "open"}
        again = await talks["gone"].append(answers=Answer(request_id="r", kind="confirm"))
        assert again.outcome == "appended"

    async def test_requests_are_found_by_what_they_are(self, cluster: Cluster) -> None:
        """The filter takes their kinds, and owner, labels and id of their conversation (contract: RequestFilter)."""
        eu: Description = {"owner": "ann", "labels": {"team": "eu", "tier": "gold"}}
        us: Description = {"owner": "bob", "labels": {"team": "us", "eu": "team"}}
        await self._ask(cluster, "x/1", new_request("r"), new_request("t", kind="tool"), about=eu)
        await self._ask(cluster, "x/2", new_request("r", kind="tool"), about=us)
        talk = await self._ask(cluster, "x%3", new_request("r", kind="other"))
        wanted: list[tuple[dict[str, Any], set[tuple[str, str]]]] = [
            ({"kinds": ["tool"]}, {("x/1", "t"), ("x/2", "r")}),
            ({"kinds": ["tool", "other", "none"]}, {("x/1", "t"), ("x/2", "r"), ("x%3", "r")}),
            ({"owner": "ann"}, {("x/1", "r"), ("x/1", "t")}),
            ({"owner": "an"}, set()),
            ({"labels": {"team": "eu"}}, {("x/1", "r"), ("x/1", "t")}),
            ({"labels": {"eu": "team"}}, {("x/2", "r")}),
            ({"labels": {"team": "eu", "tier": "gold"}, "kinds": ["tool"]}, {("x/1", "t")}),
            ({"labels": {"team": "us", "tier": "gold"}}, set()),
            ({"prefix": "x%"}, {("x%3", "r")}),
            ({"prefix": "x/", "owner": "bob"}, {("x/2", "r")}),
            ({"session_ids": ["x/2", "x%3", "none"]}, {("x/2", "r"), ("x%3", "r")}),
            ({"session_ids": ["x/1"], "kinds": ["tool"], "owner": "ann"}, {("x/1", "t")}),
            ({"session_ids": []}, set()),
        ]
        for where, names in wanted:
            found = await self._open(talk, **where)
            assert {(request.session_id, request.request_id) for request in found} == names, where
        await talk.journals.describe_journal("x/1", KIND, {"owner": "bob"})
        assert {request.session_id for request in await self._open(talk, owner="bob")} == {"x/1", "x/2"}

    async def test_requests_below_a_conversation_are_found(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its own, of its children and of theirs; not of children of an earlier conversation of its id. The nearest
        journals are looked at, up to a bound (contract: RequestFilter.below).
        """
        talk = await self._ask(cluster, "a", new_request("old"))
        await self._ask(cluster, "orphan", new_request(), parent="a")
        await talk.delete()
        await talk.provider.delete_instance(["a"], force=True)
        for name, parent in {"a": None, "b": "a", "c": "a", "d": "b", "e": "d", "other": None, "o": "other"}.items():
            await self._ask(cluster, name, new_request("r"), new_request("t", kind="tool"), parent=parent)

        async def names(**where: Any) -> set[str]:
            return {request.session_id for request in await self._open(talk, 3, **where)}

        assert await names(below="a") == {"a", "b", "c", "d", "e"}
        assert await names(below="b") == {"b", "d", "e"}
        assert await names(below="o") == {"o"}
        assert await names(below="none") == set()
        assert await names(below="a", session_ids=["d", "o", "none"]) == {"d"}
        assert await names(below="a", prefix="e", kinds=["tool"]) == {"e"}
        assert await names(below="a", session_ids=[]) == set()
        monkeypatch.setattr(listing, "MOST_BELOW", 3)
        assert await names(below="a") == {"a", "b", "c"}

    async def test_pages_have_each_request_once(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many of the requests that are looked at do not fit (contract: list_requests)."""
        monkeypatch.setattr(listing, "REQUEST_WINDOW", 3)
        rare = {"0", "1", "7", "9"}
        for name in map(str, range(10)):
            about: Description = {"owner": "ann" if name in rare else "bob"}
            talk = await self._ask(cluster, name, new_request("b"), new_request("a"), about=about)
        order = [(name, request_id) for name in map(str, range(10)) for request_id in "ba"]
        for limit in (1, 2, 3, 100):
            assert [(request.session_id, request.request_id) for request in await self._open(talk, limit)] == order
            found = [(request.session_id, request.request_id) for request in await self._open(talk, limit, owner="ann")]
            assert found == [names for names in order if names[0] in rare]
            some = await self._open(talk, limit, session_ids=["7", "1", "4"], owner="ann")
            assert [request.session_id for request in some] == ["1", "1", "7", "7"]

    async def test_requests_are_listed_by_expiry(self, cluster: Cluster) -> None:
        """Page by page, with the ones at the end that do not expire (contract: RequestFilter.by_expiry)."""
        seconds = {"late": 90.0, "never": None, "soon": 30.0, "then": 60.0}
        for name, expires_in in seconds.items():
            talk = await self._ask(cluster, name, new_request(expires_in=expires_in))
        for limit in (1, 3, 100):
            found = await self._open(talk, limit, by_expiry=True)
            assert [request.session_id for request in found] == ["soon", "then", "late", "never"]
            found = await self._open(talk, limit, by_expiry=True, session_ids=["never", "late"])
            assert [request.session_id for request in found] == ["late", "never"]

    async def test_pages_by_expiry_have_each_request_once(self, cluster: Cluster) -> None:
        """Also where they expire within a fraction of a second (contract: RequestFilter.by_expiry)."""
        names = [str(place) for place in range(1, 8)]
        for name in names:
            talk = await self._ask(cluster, name, new_request(expires_in=60 + int(name) / 7))
        assert [request.session_id for request in await self._open(talk, 2, by_expiry=True)] == names

    async def test_requests_of_a_fork_are_listed_beside_their_originals(self, cluster: Cluster) -> None:
        """They are as old, and answered independently (contract: JournalCreation.requests)."""
        talk = await self._ask(cluster, "s", new_request())
        await cluster.advance(1)
        await self._ask(cluster, "t", new_request())
        await talk.fork("f", requests=None)
        found = [(request.session_id, request.request_id) for request in await self._open(talk, 1)]
        assert (set(found[:2]), found[2:]) == ({("s", "r"), ("f", "r")}, [("t", "r")])
        await answer(talk)
        assert [request.session_id for request in await self._open(talk, 1)] == ["f", "t"]

    async def _ask(self, cluster: Cluster, name: str, *requests: Any, **start: Any) -> Conversation:
        """A conversation whose wake has made these requests."""
        owner = await ConversationOwner.begin(cluster, name, start=new_start(name, **start))
        await owner.commit_wake(requests=requests)
        return owner.conversation

    async def _open(self, talk: Conversation, limit: int = 100, **where: Any) -> list[Request]:
        """All pages."""
        found: list[Request] = []
        page = await talk.journals.list_requests(RequestFilter(**where), limit)
        while True:
            assert len(page.requests) <= limit
            found += page.requests
            if page.after is None:
                return found
            page = await talk.journals.list_requests(RequestFilter(**where, after=page.after), limit)
