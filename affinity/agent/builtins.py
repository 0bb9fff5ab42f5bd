"""Tools that a model has over its own conversation, for `run_loop`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field, JsonValue
from pydantic_core import from_json

from affinity.agent.tools import BUILT_IN_NAMES, Tool, tool
from affinity.conversation.events import JournalEntry, UserMessage
from affinity.conversation.wake import Delegate, Wake
from affinity.errors import InvalidInput

NO_CHILDREN: Final[Mapping[str, Delegate]] = {}

_Number = Annotated[int, Field(ge=1, le=100)]


def builtin_tools(wake: Wake, *, children: Mapping[str, Delegate] = NO_CHILDREN) -> list[Tool]:
    """The tools by which a model reads its journal and other conversations, requests a later wake, and gives work to
    children. Their names begin with ``session_``; no tool of the application may have one of them.

    Args:
        wake: of the loop.
        children: conversations to which the model may give work, by the names that it uses. Without any, there is no
            `session_delegate`.
    """

    @tool
    async def session_get_events(
        conversation: Annotated[str | None, Field(description="another conversation; null: this one")] = None,
        kinds: Annotated[list[str], Field(description="only these kinds of events; empty: all")] = [],  # noqa: B006
        around: Annotated[int | None, Field(description="number of an entry to look around")] = None,
        number: _Number = 20,
    ) -> list[JsonValue]:
        """Read entries of the journal: the last ones, or the ones around an entry."""
        last = number if around is None else None
        if conversation is None or conversation == wake.conversation_id:
            found = await wake.history(kinds=kinds, around=around, last=last, limit=number)
        else:
            found = await wake.read(conversation, kinds=kinds, around=around, last=last, limit=number)
        return [_document(entry) for entry in found]

    @tool
    async def session_get_trace(
        wake_id: Annotated[str, Field(description="id of an earlier wake")],
        number: Annotated[int | None, Field(ge=1, description="at most so many entries; null: all")] = None,
        after: Annotated[int, Field(ge=0, description="only entries behind this number")] = 0,
    ) -> list[JsonValue]:
        """Read what one earlier wake of this conversation did. Where the last element has "more", entries are left."""
        entries = [entry for entry in await wake.trace(wake_id) if entry.seq > after]
        shown = [_document(entry) for entry in entries[:number]]
        left = len(entries) - len(shown)
        return [*shown, {"more": left, "after": entries[len(shown) - 1].seq}] if left else shown

    @tool
    async def session_list_children() -> list[str]:
        """The conversations to which this one has given work."""
        return list(await wake.children())

    @tool
    async def session_revisit(
        seconds: Annotated[float, Field(ge=0)],
        reason: str,
        key: Annotated[str | None, Field(description="while one of this key is pending, no other is added")] = None,
    ) -> str:
        """Come back to this conversation later, by yourself."""
        wake.revisit(seconds, key=key, reason=reason)
        return "noted"

    @tool
    async def session_delegate(
        *,
        to: str = Field(description=f"one of: {', '.join(sorted(children))}"),
        child: Annotated[str, Field(description="a short name for the work, such as 'prices'")],
        task: str,
    ) -> str:
        """Give work to a child. Its result comes later, as an event."""
        if to not in children:
            raise InvalidInput(f"there is no {to!r}: give work to one of {sorted(children)}")
        await wake.delegate(children[to], f"{wake.conversation_id}/{child}", UserMessage(task))
        return "the child works on it"

    found = [session_get_events, session_get_trace, session_list_children, session_revisit]
    found += [session_delegate] if children else []
    assert {each.name for each in found} <= BUILT_IN_NAMES
    return found


def _document(entry: JournalEntry) -> JsonValue:
    value: JsonValue = from_json(entry.to_json())
    return value
