"""The table of what is encoded: records of the contract, their fields, and the columns that these are stored in.

It is the one statement of this. The wrapper of a provider follows it, a test compares it with both schemas, and the
documents show it. A guest adds its own part: a module ``store.payloads`` with `PayloadPart` ``PART``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any, Final, Protocol

from affinity.guests import modules
from affinity.payloads.forms import Form
from affinity.provider import contract as c
from affinity.records import DurableResource, SessionRecord, SessionState, frozen


@frozen()
class Encoded:
    """A field of a record, or an argument of a verb, that is encoded."""

    form: Form
    columns: str = ""
    """Where it is stored: ``table.column``, separated by spaces. Empty: the same as another field, or only read."""
    name: str = ""
    """Name of the payload, for its context; by default that of the form. What is written under one name may be read
    under another one only if they are the same, as where SQL copies it.
    """
    scope: str = ""
    """Attribute of the record that has the id of the object it belongs to; by default `Record.scope`."""
    keeps: bool = False
    """A payload that was read from another object is stored as it is there."""

    @property
    def field(self) -> str:
        """Name of the payload."""
        return self.name or self.form


@frozen(kw_only=True)
class Record:
    """What is encoded in the records of a class."""

    scope: str = ""
    """Attribute with the id of the object that its payloads, and those of the records in it, belong to; with dots. By
    default that of the record that it is in.
    """
    fields: Mapping[str, Encoded] = field(default_factory=dict)


@frozen(kw_only=True)
class VerbPayloads:
    """What a verb says beside its records."""

    parameters: Sequence[str] = ()
    """Names of its first parameters, in order."""
    results: str | None = None
    """The parameter whose elements have the scopes of the elements of the result, in order; or which is the scope of
    the whole result.
    """
    scope: str = ""
    """Attribute of each of these elements."""
    arguments: Mapping[str, Encoded] = field(default_factory=dict)
    """Arguments that are encoded; `Encoded.scope` is the name of another parameter."""
    amend: Amend | None = None
    """Corrects its result, which the database has from what is encoded."""


class Amend(Protocol):
    """Corrects the result of a verb."""

    async def __call__(self, provider: Any, given: Any, result: Any, /) -> Any:
        """Return the result; ``given``: the first argument, and ``provider`` decodes."""
        ...


class Ancestors(Protocol):
    """Finds the objects that an object was copied from by the database."""

    async def __call__(self, provider: Any, scope: str, /) -> Collection[str | None]:
        """Return their ids; None: one of them is not known any longer."""
        ...


@frozen(kw_only=True)
class PayloadPart:
    """The payloads of a guest."""

    records: Mapping[type, Record] = field(default_factory=dict)
    verbs: Mapping[str, VerbPayloads] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Columns of texts that stay in the clear, ``table.column …``, by what they hold. Numbers and times do too."""
    events: Collection[str] = ()
    """Names of external events whose data is the guest's own, and stays in the clear."""
    ancestors: Ancestors | None = None
    """For payloads that the database copies from one object to another one."""


_TASK: Final = Encoded("task", "worker_queue.payload parked_items.payload")
_MESSAGE: Final = Encoded("message", "orchestrator_queue.payload")

_KERNEL: Final = PayloadPart(
    records={
        c.NewInstance: Record(
            scope="instance_id",
            fields={
                "start": Encoded("message", "orchestrator_queue.payload instances.next_start"),
                "on_exists": Encoded("message", "orchestrator_queue.payload", scope="parent_id"),
                "on_deleted": Encoded("message", "instances.on_deleted", scope="parent_id"),
            },
        ),
        c.Restart: Record(scope="new.instance_id", fields={"cancel": _MESSAGE}),
        c.NewMessage: Record(scope="instance_id", fields={"payload": _MESSAGE}),
        c.OrchestrationItem: Record(scope="instance_id"),
        c.QueuedMessage: Record(fields={"payload": _MESSAGE}),
        c.HistoryPage: Record(fields={"events": Encoded("event", "history.event")}),
        c.InstanceInfo: Record(
            scope="instance_id",
            fields={
                "custom_status": Encoded("json", name="custom_status"),
                "output": Encoded("json", name="output"),
                "error": Encoded("json", name="error"),
            },
        ),
        c.Suspension: Record(fields={"message": Encoded("text", name="last_error")}),
        c.Suspend: Record(
            scope="instance_id", fields={"message": Encoded("text", "suspensions.message", name="last_error")}
        ),
        c.KeyState: Record(fields={"reply": Encoded("json", name="reply"), "error": Encoded("json", name="error")}),
        c.Turn: Record(
            scope="instance_id",
            fields={
                "history": Encoded("event", "history.event"),
                "custom_status": Encoded("json", "instances.custom_status", name="custom_status"),
            },
        ),
        c.InstanceUpdate: Record(
            fields={
                "output": Encoded("json", "instances.output", name="output"),
                "error": Encoded("json", "instances.error", name="error"),
            }
        ),
        c.MessageReply: Record(fields={"reply": Encoded("json", "message_keys.reply", name="reply")}),
        c.Reset: Record(
            scope="instance_id",
            fields={
                "history": Encoded("event", "history.event"),
                "custom_status": Encoded("json", "instances.custom_status", name="custom_status"),
            },
        ),
        c.ValueWrite: Record(fields={"value": Encoded("json", "instance_values.value", name="value")}),
        c.InstanceValue: Record(scope="instance_id", fields={"value": Encoded("json", name="value")}),
        c.SessionWatch: Record(fields={"payload": Encoded("message", "session_watches.payload")}),
        c.NewWorkItem: Record(scope="key.instance_id", fields={"payload": _TASK}),
        c.WorkItem: Record(scope="lock.key.instance_id", fields={"payload": _TASK}),
        c.WorkAck: Record(scope="lock.key.instance_id", fields={"message": _MESSAGE}),
        c.WorkAbandon: Record(
            scope="lock.key.instance_id",
            fields={
                "error": Encoded("text", "worker_queue.last_error failures.error", name="last_error"),
                "stack": Encoded("text", "failures.stack", name="stack"),
            },
        ),
        c.NewFailure: Record(fields={"error": Encoded("text", "failures.error", name="last_error")}),
        c.FailureRecord: Record(
            scope="instance_id",
            fields={"error": Encoded("text", name="last_error"), "stack": Encoded("text", name="stack")},
        ),
        c.FailureGroup: Record(scope="instance_id", fields={"error": Encoded("text", name="last_error")}),
        c.WorkItemInfo: Record(scope="key.instance_id", fields={"last_error": Encoded("text", name="last_error")}),
        SessionState: Record(
            scope="session_id", fields={"state": Encoded("bytes", "session_states.state", name="state")}
        ),
        SessionRecord: Record(scope="session_id", fields={"state": Encoded("bytes", name="state")}),
        DurableResource: Record(scope="resource_id", fields={"handle": Encoded("json", name="handle")}),
    },
    verbs={
        "read_history": VerbPayloads(parameters=["cursors"], results="cursors", scope="instance_id"),
        "get_replies": VerbPayloads(parameters=["keys"], results="keys", scope="instance_id"),
        "set_resource_handle": VerbPayloads(
            parameters=["resource_id", "handle"],
            arguments={"handle": Encoded("json", "resources.handle", name="handle", scope="resource_id")},
        ),
    },
    metadata={
        "an id, by which rows are found and ordered": (
            "activity_waits.awaited activity_waits.instance_id ended_executions.instance_id failures.instance_id "
            "history.instance_id "
            "instance_sizes.instance_id instance_values.instance_id instances.instance_id instances.parent_id "
            "instances.session_id "
            "instances_by_status.instance_id instance_labels.instance_id message_keys.instance_id message_keys.key "
            "orchestrator_queue.instance_id parked_items.instance_id parked_items.session_id "
            "resources.instance_id resources.resource_id session_holds.instance_id session_holds.session_id "
            "session_labels.session_id session_moves.session_id session_orders.session_id "
            "session_participants.session_id session_states.parent session_states.session_id "
            "session_watches.instance_id session_watches.session_id sessions.session_id suspensions.instance_id "
            "sweeps.queued_session sweeps.session worker_queue.gate_session worker_queue.instance_id "
            "worker_queue.order_session worker_queue.session_id"
        ),
        "a worker, or its lock": (
            "activity_waits.lock_token history.recorded_by history.run_by instances.owner_incarnation "
            "instances.owner_worker session_moves.from_worker session_moves.to_worker sessions.incarnation "
            "sessions.next_worker sessions.worker_id suspensions.worker_id worker_queue.lock_incarnation "
            "worker_queue.lock_token worker_queue.lock_worker workers.incarnation workers.worker_id"
        ),
        "words of affinity": (
            "counters.name failures.kind granted_roles.kind instances.status instances_by_status.status "
            "instance_labels.phase "
            "orchestrator_queue.route rounds.name session_moves.reason session_states.encoding "
            "session_states.turn sessions.freed_by sessions.next_reason sweeps.queued_route worker_queue.route"
        ),
        "random names, and the place of the server": (
            "database_identity.name instance_sizes.generation instances.generation instances.parent_generation "
            "message_keys.generation parked_items.generation session_states.generation timeline.place "
            "timeline.token"
        ),
        "what rows are found by: put no secret into it": (
            "granted_roles.role instance_labels.key instance_labels.value instance_values.key instances.labels "
            "session_labels.key session_labels.value session_participants.participant "
            "session_states.labels session_states.name session_states.participants sessions.tag worker_queue.tag "
            "workers.labels workers.tags"
        ),
        "names, keys and numbers of limits": "instances.gate parked_items.gate worker_queue.gate",
        "names and versions of code, and classes of errors": (
            "failures.error_type failures.name instances.name instances.version migrations.release parked_items.name "
            "resources.name "
            "session_states.kind suspensions.code suspensions.error_type suspensions.name suspensions.tried "
            "worker_queue.name "
            "worker_queue.needs workers.app workers.code_version workers.interfaces workers.registered"
        ),
        "a text of affinity, encoded, which shows whether a codec has the keys": "database_identity.check_value",
        "times": "migrations.applied_at session_states.updated_second",
        "numbers, as JSON": "rounds.place session_moves.resource_seconds",
    },
)


@cache
def payload_parts() -> Sequence[PayloadPart]:
    """Return the kernel's part, and those of the guests."""
    return [_KERNEL, *[module.PART for module in modules("store.payloads").values()]]


@cache
def all_records() -> Mapping[type, Record]:
    """Return what is encoded, by class of record."""
    return {cls: record for part in payload_parts() for cls, record in part.records.items()}


@cache
def all_verbs() -> Mapping[str, VerbPayloads]:
    """Return what verbs say beside their records."""
    return {name: verb for part in payload_parts() for name, verb in part.verbs.items()}


@cache
def encoded_columns() -> frozenset[str]:
    """Return the columns that hold encoded payloads, as ``table.column``."""
    of_records = [encoded for record in all_records().values() for encoded in record.fields.values()]
    of_verbs = [encoded for verb in all_verbs().values() for encoded in verb.arguments.values()]
    return frozenset(column for encoded in (*of_records, *of_verbs) for column in encoded.columns.split())


@cache
def metadata_columns() -> Mapping[str, str]:
    """Return the columns of texts that stay in the clear, and what they hold."""
    return {
        column: reason
        for part in payload_parts()
        for reason, columns in part.metadata.items()
        for column in columns.split()
    }


@cache
def plain_events() -> frozenset[str]:
    """Return the names of external events whose data is a guest's own."""
    return frozenset(name for part in payload_parts() for name in part.events)
