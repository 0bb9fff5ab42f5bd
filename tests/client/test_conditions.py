"""One rule for the conditions of all listings: one text or several, values and names that exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from affinity import Client
from affinity.conversation import AgentMessage, UserMessage
from affinity.conversation.reading import Kinds
from affinity.errors import InvalidInput
from affinity.limits import several as texts_of
from tests.support.console_app import chats

pytestmark = pytest.mark.anyio

LISTINGS: dict[str, Callable[..., Any]] = {
    "instances": lambda client, **where: client.list_page(**where),
    "conversations": lambda client, **where: client.list_conversations_page(**where),
    "requests": lambda client, **where: client.requests_page(**where),
    "moves": lambda client, **where: client.session_moves(**where),
    "audit": lambda client, **where: client.audit_page(**where),
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
        ("instances", {"nmae": "x"}, "there is no condition 'nmae': did you mean 'name'?"),
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
