"""The task of a wake, compared with the journal: its orchestration may not know all about the wakes before.

A wake that was cancelled may have committed before, and its result was dropped; or an operator has reset or deleted the
instance, or a reset runs the activity of an earlier execution again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypedDict

from affinity.conversation import events as ev
from affinity.conversation.access import journals_in
from affinity.conversation.events import kind_of, meta_of
from affinity.conversation.journal import JournalAccess, JournalQuery, PendingWork
from affinity.conversation.program import Alone, Delegation, WakeOutcome, WakeTask
from affinity.conversation.reading import all_entries, all_wakes
from affinity.conversation.step_keys import GIVEN
from affinity.conversation.writing import CHILD_ENDED
from affinity.limits import MAX_PAGE
from affinity.orchestration import ActivityContext
from affinity.records import parse_stored

USER_INTERRUPT: Final = kind_of(ev.UserInterrupt)


def task_of_execution(task: WakeTask, execution_id: int) -> WakeTask:
    """Return the task with the id that it has in this execution: a reset runs an activity of an earlier execution
    again, with the input that was recorded there, as another wake.
    """
    salt, execution, number = task["wake"].rsplit("-", 2)
    if int(execution) == execution_id:
        return task
    return {**task, "wake": f"{salt}-{execution_id}-{number}"}


def unchanged(task: WakeTask, work: PendingWork) -> WakeOutcome:
    """Return the result of a wake that processes nothing, with the findings of the task about cancelled wakes."""
    outcome = WakeOutcome(outcome="nothing", processed=work.processed)
    if "delegations" in task:
        outcome["delegations"] = task["delegations"]
    if "cancelled_wakes" in task:
        outcome["cancelled_wakes"] = task["cancelled_wakes"]
    if "alone" in task:
        outcome["alone"] = task["alone"]
    return outcome


def work_of_task(task: WakeTask, work: PendingWork) -> PendingWork:
    """Return the pending work for this wake: all of it, or one input or due revisit of those that are tried one by one.
    An interrupt is read together with the entries before it.
    """
    left = left_alone(task, work)
    if left is None:
        return work
    inputs = [*work.inputs[:1]] if work.inputs and work.inputs[0].seq <= left["read"] else []
    due = [] if inputs else [revisit for revisit in work.due if revisit.key in left["due"]][:1]
    rest = [*work.inputs[len(inputs) :], *work.due[len(due) :], *work.requests[len(work.open_requests) :]]
    return replace(work, inputs=inputs, due=due, requests=work.open_requests, more=work.more or bool(rest))


def left_alone(task: WakeTask, work: PendingWork, behind: int = 0) -> Alone | None:
    """Return the inputs and revisits that are left to be tried one by one; None: nothing is left.

    Args:
        task: of the wake.
        work: all that is pending.
        behind: this number of inputs and revisits is left out from the front.
    """
    alone = task.get("alone")
    if alone is None or any(item.kind == USER_INTERRUPT for item in work.inputs):
        return None
    inputs = sum(item.seq <= alone["read"] for item in work.inputs)
    due = [revisit.key for revisit in work.due if revisit.key in alone["due"]]
    return Alone(wake=alone["wake"], read=alone["read"], due=due) if inputs + len(due) > behind else None


class Given(TypedDict):
    """The work that the first attempt of a wake was given which has committed anything."""

    read: int  # number of the last input
    due: list[str]  # keys of revisits
    expired: list[str]  # ids of requests


def as_given(task: WakeTask, work: PendingWork) -> PendingWork:
    """Return the work without anything that has come since an attempt of the wake first committed: its steps and
    commits, and the state in them, belong to the work that it was given.
    """
    rows = [row.result or "{}" for row in work.steps if row.wake_id == task["wake"] and row.key == GIVEN]
    if not rows:
        return work
    given: Given = parse_stored(rows[0])
    inputs = [item for item in work.inputs if item.seq <= given["read"]]
    due = [revisit for revisit in work.due if revisit.key in given["due"]]
    requests = [
        request._replace(expired=False) if request.expired and request.request_id not in given["expired"] else request
        for request in work.requests
    ]
    is_due = len(due) < len(work.due) or requests != [*work.requests]
    return replace(
        work,
        inputs=inputs,
        more=work.more or len(inputs) < len(work.inputs),
        due=due,
        requests=requests,
        next_due=0.0 if is_due else work.next_due,
    )


def given_work(work: PendingWork) -> Given:
    """Return the work of an attempt, for the next attempts."""
    return Given(
        read=work.inputs[-1].seq if work.inputs else work.processed,
        due=[revisit.key for revisit in work.due],
        expired=[request.request_id for request in work.requests if request.expired],
    )


async def drop_ended_wakes(task: WakeTask, work: PendingWork, ctx: ActivityContext) -> WakeTask:
    """Return the task without the cancelled wakes that have no open trace, and with the delegations that the
    orchestration does not know.

    A cancelled wake has no open trace in three cases: no input had unparked it; it had committed its end before the
    orchestration cancelled it, and so dropped its result; or a later wake has closed the trace.
    """
    journals = journals_in(ctx)
    assert journals is not None
    task = task.copy()
    cancelled = task.pop("cancelled_wakes", [])
    unclosed = await _find_unclosed(task, work, cancelled, ctx)
    if task.get("was_parked") and not work.inputs:
        unclosed = [wake for wake in unclosed if wake != cancelled[0]]
    if unclosed:
        task["cancelled_wakes"] = unclosed
    if task.get("processed", work.processed) < work.processed or work.steps:
        await _add_begun(task, work, ctx.instance_id, journals)
    return task


async def _find_unclosed(
    task: WakeTask, work: PendingWork, cancelled: Sequence[str], ctx: ActivityContext
) -> list[str]:
    """Return the cancelled wakes whose trace is open."""
    journals = journals_in(ctx)
    assert journals is not None
    if not cancelled:
        return []
    known = min(task.get("processed", 0), work.processed)  # their entries are behind it
    ends = all_wakes(journals.wakes, ctx.instance_id, known)
    outcomes = {end.wake_id: end.outcome async for end in ends}
    unclosed: list[str] = []
    for wake in cancelled:
        outcome = outcomes.get(wake)
        if outcome is not None:
            unclosed.clear()  # its commit has closed the traces of the wakes before
        if outcome in {None, "retried"}:
            unclosed.append(wake)
    return unclosed


async def _add_begun(task: WakeTask, work: PendingWork, session_id: str, journals: JournalAccess) -> None:
    """Add open delegations to this conversation that the orchestration does not know: their wakes had ended before they
    were cancelled, or an operator has reset or deleted the instance.

    Entries that a journal has from another journal do not count.
    """
    own = next(iter(await journals.lineage(session_id)), None)
    if own is None or own.lineage == "import":
        return
    base = 0 if own.base is None else own.base.up_to or 0
    known = {delegation["id"] for delegation in task.get("delegations", [])}
    inputs = JournalQuery(
        session_id=session_id, after=max(base, task.get("processed", 0)), before=work.processed + 1, limit=MAX_PAGE
    )
    async for entry in all_entries(journals.read, inputs):
        meta = meta_of(entry.payload) if entry.is_input and not entry.is_copied else ev.NO_META
        if meta.delegation and meta.delegation not in known and not await _has_end(journals, meta):
            task["delegations"] = [*task.get("delegations", []), delegation_of(meta, cycles=1)]


async def _has_end(journals: JournalAccess, meta: ev.EventMeta) -> bool:
    """Return whether the parent has been notified of the end of a delegation, or is gone."""
    event_id = f"{CHILD_ENDED}/{meta.delegation}"
    page = await journals.read(JournalQuery(session_id=meta.parent or "", event_id=event_id, limit=1))
    return page is None or meta.parent_journal not in {None, page.journal_id} or bool(page.entries)


def delegation_of(meta: ev.EventMeta, cycles: int = 0) -> Delegation:
    """Return the delegation that has an input with this data."""
    return Delegation(
        id=meta.delegation or "",
        parent=meta.parent or "",
        parent_kind=meta.parent_kind or "",
        parent_journal=meta.parent_journal,
        max_cycles=meta.max_cycles,
        cycles=cycles,
    )
