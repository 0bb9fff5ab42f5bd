"""Tools that a model has over its own conversation, for `run_loop`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field, JsonValue
from pydantic_core import from_json

from affinity.agent.tools import BUILT_IN_NAMES, Tool, tool
from affinity.conversation import ConversationInfo
from affinity.conversation.events import JournalEntry, OutcomeStatus, OutcomeUpdated, UserMessage
from affinity.conversation.wake import Delegate, Wake
from affinity.errors import InvalidInput

NO_CHILDREN: Final[Mapping[str, Delegate]] = {}

_Number = Annotated[int, Field(ge=1, le=100)]


def builtin_tools(wake: Wake, *, children: Mapping[str, Delegate] = NO_CHILDREN) -> list[Tool]:
    """The tools by which a model works on its own conversation, and on others. No tool of the application may have one
    of their names.

    - ``session_get_events``, ``session_get_trace``: reads its journal, or another one.
    - ``session_list``, ``session_get_snapshot``: finds other conversations of this kind, and how they stand.
    - ``session_list_children``, ``session_delegate``, ``session_run_child``: gives work to children, whose results come
      later.
    - ``session_revisit``: comes back later.
    - ``outcome_read``, ``outcome_define``: reads the goal of the conversation, and sets it or says how far it is.

    Args:
        wake: of the loop.
        children: conversations to which the model may give work, by the names that it uses. Without any, there is no
            ``session_delegate`` and no ``session_run_child``.
    """
    found = [*_reading(wake), *_planning(wake), *(_delegating(wake, children) if children else [])]
    assert {each.name for each in found} <= BUILT_IN_NAMES
    return found


def _reading(wake: Wake) -> list[Tool]:
    @tool
    async def session_list(
        prefix: Annotated[str | None, Field(description="only ids that begin with this")] = None, number: _Number = 20
    ) -> list[JsonValue]:
        """Other conversations of this kind, newest first, with their status."""
        found = await wake.conversations(prefix=prefix, limit=number)
        return [_summary(each) for each in found if each.conversation_id != wake.conversation_id]

    @tool
    async def session_get_snapshot(
        conversation: Annotated[str | None, Field(description="another conversation; null: this one")] = None,
    ) -> JsonValue:
        """How a conversation stands: its status, what it waits for, its last entries."""
        name = conversation or wake.conversation_id
        found = await wake.conversations(conversation_id=name, limit=1)
        if not found:
            raise InvalidInput(f"there is no conversation {name!r} of this kind: `session_list` names others")
        last = await wake.read(name, kinds=["user.message", "agent.message"], last=5)
        return {**_summary(found[0]), "last": [_document(each) for each in last]}

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

    return [session_list, session_get_snapshot, session_get_events, session_get_trace, session_list_children]


def _planning(wake: Wake) -> list[Tool]:
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
    async def outcome_read() -> JsonValue:
        """The goal of this conversation, and how far it is; null: none was defined."""
        found = await wake.outcome()
        return None if found is None else found.model_dump(mode="json", exclude={"kind"})

    @tool
    async def outcome_define(
        outcome: Annotated[str, Field(description="the goal")],
        criteria: Annotated[list[str], Field(description="by which it is known to be reached")] = [],  # noqa: B006
        status: OutcomeStatus = "open",
        note: Annotated[str, Field(description="why it has this status")] = "",
    ) -> str:
        """Set the goal of this conversation, or say how far it is."""
        wake.append(OutcomeUpdated(outcome, criteria, status, note))
        return "noted"

    return [session_revisit, outcome_read, outcome_define]


def _delegating(wake: Wake, children: Mapping[str, Delegate]) -> list[Tool]:
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
        await wake.delegate(children[to], _child_id(wake, child), UserMessage(task))
        return "the child works on it"

    @tool
    async def session_run_child(
        child: Annotated[str, Field(description="its short name, or its id as `session_list_children` gives it")],
        task: str,
        cycles: Annotated[int, Field(ge=1, le=20, description="runs that it may take for it")] = 3,
    ) -> str:
        """Give an existing child a next task, for a few bounded runs. Its result comes later, as an event."""
        name = _child_id(wake, child)
        kind = await wake.kind_of_child(name)
        of_kind = [each for each in children.values() if each.spec.name == kind]
        if not of_kind:
            raise InvalidInput(f"there is no child {child!r}: `session_list_children` names them")
        await wake.delegate(of_kind[0], name, UserMessage(task), max_cycles=cycles)
        return "the child works on it"

    return [session_delegate, session_run_child]


def _child_id(wake: Wake, child: str) -> str:
    """The id of a child, which is given by its short name, or by its id. Another conversation's child has another one:
    a short name has no "/".
    """
    prefix = f"{wake.conversation_id}/"
    name = child.removeprefix(prefix)
    if "/" in name:
        raise InvalidInput(f"the short name of a child has no '/': {name!r}")
    return f"{prefix}{name}"


def _summary(info: ConversationInfo) -> dict[str, JsonValue]:
    return {
        "conversation": info.conversation_id,
        "status": info.status,
        "parent": info.parent,
        "entries": info.last_seq,
        "requests": info.pending_requests,
        "revisits": info.pending_revisits,
        "updated_at": info.updated_at.isoformat(),
    }


def _document(entry: JournalEntry) -> JsonValue:
    value: JsonValue = from_json(entry.to_json())
    return value
