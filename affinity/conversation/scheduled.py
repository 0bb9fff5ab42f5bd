"""Events to conversations by a schedule: to one, or to each that a filter finds, in steps of 1,000.

A tick starts an instance of an orchestration of its own, whose id is the event id: however often a step runs, a
conversation has one entry of a tick. Conversations that begin during a tick are not among them: the filter is walked
from the newest to the oldest.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, NotRequired, TypedDict, cast

from pydantic_core import to_json

from affinity.conversation.access import journals_in
from affinity.conversation.client import ConversationConditions
from affinity.conversation.events import AnswerEvent, JournalEvent, UserInterrupt, check_input
from affinity.conversation.journal import ConversationStatus, JournalAccess, JournalAppend, JournalFilter, NewEntry
from affinity.conversation.kinds import WAKE_MESSAGE, ConversationKind, start_of
from affinity.errors import ConversationError, InvalidInput
from affinity.limits import MAX_PAGE, MAX_UNREAD_EVENTS, check_choice
from affinity.orchestration import ActivityContext, KernelApp, OrchestrationContext
from affinity.schedules import ScheduleTarget

STEPS_PER_EXECUTION: Final = 500
"""Steps after which the instance continues as new."""

_SENT: Final = frozenset({"appended", "repeated"})


class Delivered(TypedDict):
    """The result of the orchestration, and of its steps so far."""

    sent: int
    refused: int  # conversations that took no event: too many are unread, or it has ended since
    after: NotRequired[tuple[str, str] | None]  # creation and id of the last conversation; None: it was the last step


class Delivery(TypedDict):
    """The input of the orchestration, with what one execution leaves to the next."""

    kind: str  # of the event
    event: str  # JSON
    to: NotRequired[str]  # conversation; created, if it does not exist
    each: NotRequired[Mapping[str, Any]]  # conditions of `JournalFilter`
    done: NotRequired[Delivered]


def delivery_of(kind: ConversationKind, event: JournalEvent) -> Delivery:
    """Return the delivery of an event, without a receiver.

    Raises:
        InvalidInput: the event is not one that a client may send at any time.
    """
    check_input(event)
    if isinstance(event, AnswerEvent | UserInterrupt):
        raise InvalidInput(f"an event of kind {event.kind!r} answers or interrupts something: a schedule sends others")
    return Delivery(kind=event.kind, event=kind.types.encode(event))


def target_of(kind: ConversationKind, delivery: Delivery) -> ScheduleTarget:
    """Return the target that a schedule starts to deliver this."""
    return ScheduleTarget(orchestration=orchestration_of(kind), input=to_json(delivery).decode(), sends=True)


def conditions_of(where: ConversationConditions) -> dict[str, Any]:
    """Return the conditions of a filter, as JSON.

    Raises:
        InvalidInput: an unknown status, or a text that no store can keep.
    """
    given: dict[str, Any] = {name: value for name, value in where.items() if value is not None}
    if "kind" in given or "terminated" in given:
        raise InvalidInput("the conversations are of this kind, and not terminated: leave out kind= and terminated=")
    if "status" in given:
        check_choice("status", given["status"], ConversationStatus)
    JournalFilter(**given)
    return given


def orchestration_of(kind: ConversationKind) -> str:
    """Return the name of the orchestration."""
    return f"{kind.name}.scheduled"


def register(app: KernelApp, kind: ConversationKind) -> None:
    """Register the orchestration and its activity."""
    activity = f"{kind.name}.deliver"

    @app.activity(name=activity)
    async def deliver(ctx: ActivityContext, delivery: dict[str, Any]) -> dict[str, Any]:
        journals = journals_in(ctx)
        assert journals is not None
        return cast(dict[str, Any], await _deliver(journals, kind, cast(Delivery, delivery), ctx.instance_id))

    @app.orchestration(name=orchestration_of(kind))
    async def scheduled(ctx: OrchestrationContext, delivery: dict[str, Any]) -> dict[str, int]:
        for _ in range(STEPS_PER_EXECUTION):
            done = await ctx.schedule_activity(deliver, delivery)
            if done["after"] is None:
                return {"sent": done["sent"], "refused": done["refused"]}
            delivery = {**delivery, "done": done}
        ctx.continue_as_new(delivery)


async def _deliver(journals: JournalAccess, kind: ConversationKind, delivery: Delivery, event_id: str) -> Delivered:
    """Run one step."""
    entry = NewEntry(kind=delivery["kind"], payload=delivery["event"], event_id=event_id, is_input=True)
    new = partial(JournalAppend, kind=kind.name, entry=entry, message=WAKE_MESSAGE, unread_limit=MAX_UNREAD_EVENTS)
    if "to" in delivery:
        append = new(session_id=delivery["to"], start=start_of(kind.name))
        (appended,) = await journals.append_inputs([append])
        if appended.outcome not in _SENT:
            text = f"the event of the schedule was not sent: {appended.outcome}"
            raise ConversationError(delivery["to"], text)
        return Delivered(sent=1, refused=0, after=None)
    done = delivery.get("done", Delivered(sent=0, refused=0))
    found = await journals.list(_filter_of(kind, delivery), MAX_PAGE)
    outcomes = await journals.append_inputs([new(session_id=row.session_id) for row in found])
    sent = sum(outcome.outcome in _SENT for outcome in outcomes)
    last = (found[-1].created_at.isoformat(), found[-1].session_id) if len(found) == MAX_PAGE else None
    return Delivered(sent=done["sent"] + sent, refused=done["refused"] + len(found) - sent, after=last)


def _filter_of(kind: ConversationKind, delivery: Delivery) -> JournalFilter:
    after = delivery.get("done", {}).get("after")
    cursor = None if after is None else (datetime.fromisoformat(after[0]), after[1])
    return JournalFilter(kind=kind.name, closed=False, after=cursor, **delivery.get("each", {}))
