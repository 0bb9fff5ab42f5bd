"""One rule for the conditions of all listings: one text or several, values and names that exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from affinity import Client
from affinity.conversation import AgentMessage, UserMessage
from affinity.conversation.journal import JournalQuery
from affinity.conversation.reading import Kinds
from affinity.errors import InvalidId, InvalidInput
from affinity.limits import several as texts_of
from affinity_conformance.providers.builders import state
from affinity_conformance.providers.conversation.driver import new_input
from tests.support.console_app import chats

pytestmark = pytest.mark.anyio

LISTINGS: dict[str, Callable[..., Any]] = {
    "instances": lambda client, **where: client.list_instances(**where),
    "conversations": lambda client, **where: client.list_conversations(**where),
    "requests": lambda client, **where: client.requests(**where),
    "moves": lambda client, **where: client.session_moves(**where),
    "audit": lambda client, **where: client.audit(**where),
    "prune": lambda client, **where: client.prune(older_than=1, **where),
}


@pytest.mark.parametrize(
    ("listing", "where"),
    [
        ("instances", {"status": "failed"}),
        ("instances", {"status": ["failed", "completed"]}),
        ("instances", {"status": {"failed"}}),
        ("instances", {"status": None, "name": None}),
        ("instances", {"status": ()}),
        ("conversations", {"status": "waiting"}),
        ("requests", {"kinds": "agent.tool_confirmation"}),
        ("requests", {"kinds": ["agent.tool_confirmation"]}),
        ("moves", {"reason": "moved"}),
        ("prune", {"status": "failed"}),
        ("prune", {"status": ("failed",)}),
    ],
)
async def test_a_text_is_one_of_several(sqlite_url: str, listing: str, where: dict[str, Any]) -> None:
    async with Client(sqlite_url) as client:
        await LISTINGS[listing](client, **where)


@pytest.mark.parametrize(
    ("listing", "where", "message"),
    [
        ("instances", {"status": "done"}, "status = 'done': must be among pending, "),
        ("instances", {"status": ["failed", "done"]}, "status = 'done': must be among"),
        ("instances", {"status": 3}, "must be a text, or several"),
        ("instances", {"status": [3]}, "status = 3"),
        ("instances", {"status": b"failed"}, "must be a text, or several"),
        ("instances", {"nmae": "x"}, "there is no condition 'nmae', did you mean 'name'? There are status, name"),
        ("instances", {"id_prefix": "x"}, "did you mean 'prefix'?"),
        ("instances", {"nonsense": 1}, "There are status, name, prefix"),
        ("conversations", {"status": "asleep"}, "status = 'asleep': must be one of"),
        ("conversations", {"title": "x"}, "there is no condition 'title'"),
        ("requests", {"kind": "x"}, "did you mean 'kinds'?"),
        ("requests", {"kinds": [UserMessage]}, "must be a text"),
        ("moves", {"reason": "boredom"}, "reason = 'boredom': must be one of"),
        ("audit", {"usr": "ann"}, "did you mean 'user'?"),
        ("prune", {"status": "done"}, "status = 'done': must be among cancelled, completed, failed"),
        ("prune", {"status": ()}, "name some of"),
    ],
)
async def test_what_does_not_exist_is_refused(
    sqlite_url: str, listing: str, where: dict[str, Any], message: str
) -> None:
    """An empty listing would be an answer to another question."""
    async with Client(sqlite_url) as client:
        with pytest.raises(InvalidInput) as error:
            await LISTINGS[listing](client, **where)
        assert message in str(error.value)


RAW: dict[str, Callable[[Client, str], Awaitable[object]]] = {
    "load": lambda client, text: client.session_store.load(text),
    "save": lambda client, text: client.session_store.save(state("s"), generation=text),
    "save once": lambda client, text: client.session_store.save(state("s"), idempotency_key=text),
    "delete": lambda client, text: client.session_store.delete(["s", text]),
    "delete a version": lambda client, text: client.session_store.delete(["s"], generations={"s": text}),
    "children": lambda client, text: client.session_store.children([text], 1),
    "children after": lambda client, text: client.session_store.children(
        ["s"], 1, after=(text, datetime.now(UTC), "s")
    ),
    "ancestors": lambda client, text: client.session_store.ancestors(text, 1),
    "append": lambda client, text: client.journals.append(new_input(text)),
    "append of a kind": lambda client, text: client.journals.append(new_input("s", entry_kind=text)),
    "append an event": lambda client, text: client.journals.append(new_input("s", event_id=text)),
    "read": lambda client, text: client.journals.read(JournalQuery(session_id=text)),
    "read a kind": lambda client, text: client.journals.read(JournalQuery(session_id="s", kinds=[text])),
    "read a wake": lambda client, text: client.journals.read(JournalQuery(session_id="s", wake_id=text)),
    "read an event": lambda client, text: client.journals.read(JournalQuery(session_id="s", event_id=text)),
    "pending": lambda client, text: client.journals.pending(text),
    "lineage": lambda client, text: client.journals.lineage(text),
    "wakes": lambda client, text: client.journals.wakes(text),
    "describe": lambda client, text: client.journals.describe(text, "chat", {}),
    "describe a kind": lambda client, text: client.journals.describe("s", text, {}),
    "describe a title": lambda client, text: client.journals.describe("s", "chat", {"title": text}),
    "epochs": lambda client, text: client.journals.held_epochs([text]),
    "delete a journal": lambda client, text: client.journals.delete([text]),
}


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
@pytest.mark.parametrize("call", RAW)
async def test_a_text_that_no_store_keeps_is_refused_before_it(sqlite_url: str, call: str, text: str) -> None:
    """By the calls for the layers above too: SQLite would take some, and PostgreSQL refuse the data."""
    async with Client(sqlite_url) as client:
        with pytest.raises(InvalidId, match="no store can keep"):
            await RAW[call](client, text)
        assert await client.session_store.load("s") is None


async def test_kinds_of_entries_are_one_or_several(sqlite_url: str) -> None:
    """As texts or as classes; and a name of a schedule is not its letters."""
    async with Client(sqlite_url) as client:
        talk = client.conversation(chats, "c")
        await talk.send(UserMessage("hi"))
        several: list[Kinds] = ["user.message", UserMessage, ["user.message"], [UserMessage, AgentMessage]]
        for kinds in several:
            assert len(await talk.history(kinds=kinds)) == 1, kinds
        assert await talk.history(kinds=AgentMessage) == []
        assert await client.schedules.explain("nightly") == {}


def test_several() -> None:
    assert texts_of("ab", "x") == ["ab"]
    assert texts_of(iter(["a", "b"]), "x", ["a", "b"]) == ["a", "b"]
    with pytest.raises(InvalidInput):
        texts_of({"a": 1}, "x")
