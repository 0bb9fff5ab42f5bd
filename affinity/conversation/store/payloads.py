"""What is encoded of journals, and what the database copies from one journal to another one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from affinity.conversation import journal as j
from affinity.conversation.kinds import SIGNAL
from affinity.conversation.store.contract import JournalProvider
from affinity.conversation.store.repeats import refuse_other_events
from affinity.payloads.table import Encoded, PayloadPart, Record, VerbPayloads

_ENTRY: Final = Encoded("entry", "journal_entries.payload")
_REQUEST: Final = Encoded("entry", "journal_requests.payload")
_START: Final = Encoded("message", "orchestrator_queue.payload")
_NOTE: Final = Encoded("json", "journal_revisits.note", name="note")
_WHY: Final = Encoded("text", "journal_revisits.reason", name="revisit_reason")
_ABOUT: Final = Encoded("description", "journals.title", name="title")
_TITLE: Final = Encoded("text", name="title")
_EXTRAS: Final = Encoded("object", "journals.extras", name="extras")
_END: Final = {
    "reason": Encoded("text", "journal_wakes.reason", name="wake_reason"),
    "error": Encoded("object", "journal_wakes.error", name="wake_error"),
}


async def _ancestors(provider: JournalProvider, scope: str) -> Collection[str | None]:
    """A detached journal has no parents, but has copies of what its base had."""
    found, left = set[str | None](), [scope]
    while left:
        for row in await provider.get_lineage(left.pop()):
            found.add(row.session_id)
            if row.base is not None and row.base_session not in found:
                found.add(row.base_session)
                left += [] if row.base_session is None else [row.base_session]
    return found


async def _compare(
    provider: JournalProvider, appends: Sequence[j.JournalAppend], done: Sequence[j.Appended]
) -> Sequence[j.Appended]:
    """Compare repeated events as they were before they were encoded: the database sees two different texts."""
    if not any(appended.outcome == "other_event" for appended in done):
        return done
    repeated = [
        appended._replace(outcome="repeated") if appended.outcome == "other_event" else appended for appended in done
    ]
    return await refuse_other_events(provider.read_journal, appends, repeated)


PART: Final = PayloadPart(
    records={
        j.JournalAppend: Record(scope="session_id"),
        j.NewEntry: Record(fields={"payload": _ENTRY}),
        j.Entry: Record(fields={"payload": _ENTRY}),
        j.JournalStart: Record(fields={"start": _START, "about": _ABOUT}),
        j.InstanceStart: Record(scope="instance_id", fields={"start": _START}),
        j.NewRequest: Record(fields={"payload": _REQUEST}),
        j.InheritedRequest: Record(fields={"payload": Encoded("entry", "journal_requests.payload", keeps=True)}),
        j.Request: Record(fields={"payload": _REQUEST, "title": _TITLE}),
        j.NewRevisit: Record(fields={"note": _NOTE, "reason": _WHY}),
        j.Revisit: Record(fields={"note": _NOTE, "reason": _WHY}),
        j.Step: Record(
            fields={
                "arguments": Encoded("text", "journal_steps.arguments", name="step_arguments"),
                "result": Encoded("json", "journal_steps.result", name="step"),
            }
        ),
        j.WakeEnd: Record(fields=_END),
        j.JournalWake: Record(fields=_END),
        j.JournalWrite: Record(scope="session_id"),
        j.WakeFailure: Record(fields={"error": Encoded("text", "failures.error", name="last_error")}),
        j.JournalCreation: Record(scope="session_id", fields={"extras": _EXTRAS, "about": _ABOUT}),
        j.JournalLineage: Record(scope="session_id", fields={"extras": _EXTRAS, "title": _TITLE}),
        j.JournalInfo: Record(scope="session_id", fields={"title": _TITLE}),
        j.StreamPart: Record(
            scope="session_id", fields={"payload": Encoded("json", "journal_streams.payload", name="stream")}
        ),
    },
    verbs={
        "append_journal": VerbPayloads(parameters=["appends"], amend=_compare),
        "get_pending": VerbPayloads(parameters=["session_ids"], results="session_ids"),
        "read_journal": VerbPayloads(parameters=["queries"], results="queries", scope="session_id"),
        "get_wakes": VerbPayloads(parameters=["session_id"], results="session_id"),
        "describe_journal": VerbPayloads(
            parameters=["session_id", "kind", "changes"],
            arguments={"changes": Encoded("description", "journals.title", name="title", scope="session_id")},
        ),
    },
    events=[SIGNAL],
    ancestors=_ancestors,
    metadata={
        "an id, by which rows are found and ordered": (
            "journal_delegations.child journal_delegations.delegation_id journal_entries.event_id "
            "journal_entries.wake_id journal_requests.request_id journal_requests.wake_id journal_revisits.key "
            "journal_revisits.wake_id journal_steps.key journal_steps.wake_id journal_streams.wake_id "
            "journal_wakes.wake_id journals.ended_wake journals.home journals.parent journals.session_id"
        ),
        "names and versions of code, and classes of errors": (
            "journal_entries.kind journal_requests.kind journals.kind"
        ),
        "what rows are found by: put no secret into it": (
            "journal_labels.key journal_labels.value journals.labels journals.operator journals.owner"
        ),
        "words of affinity": "journal_wakes.outcome journals.lineage",
        "numbers, as JSON": "journals.used",
    },
)
