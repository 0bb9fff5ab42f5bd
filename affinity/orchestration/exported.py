"""The history of an instance outside of its database: one JSON document, which a replay reads.

::

    {"format": "affinity.history", "format_version": 1, "instance_id": "chat-17", "name": "chat",
     "session_id": null, "status": "running",
     "suspended_for": null, "suspension_message": null,
     "executions": [{"execution_id": 1, "events": [{"type": "orchestration_started", …}, …]}, …]}

Events are as they are stored, with their payloads; executions are in their order. Keys that are not known are ignored.
If payloads are encoded, ``"encoded_in"`` is the name of their database, which is in the context of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from affinity.errors import InvalidInput, NotSerializable, OrchestrationUnreadable
from affinity.orchestration.codec import read_json
from affinity.orchestration.events import Event, OrchestrationStarted
from affinity.orchestration.wire import read_event
from affinity.records import frozen

FORMAT: Final = "affinity.history"

FORMAT_VERSION: Final = 1
"""Greater when a release that reads the version before would misunderstand the document."""

OUTCOME_STATUSES: Final[Mapping[str, Literal["completed", "failed", "cancelled", "continued"]]] = {
    "orchestration_completed": "completed",
    "orchestration_failed": "failed",
    "orchestration_cancelled": "cancelled",
    "continued_as_new": "continued",
}
"""The status of an execution that ends with an event of this type."""

RESET: Final = "execution_reset"
"""Type of the event with which a reset begins an execution."""


@frozen(kw_only=True)
class ExportedExecution:
    """The history of one execution."""

    execution_id: int
    events: Sequence[object]
    """As JSON values."""

    @property
    def status(self) -> str | None:
        """With which it has ended; None: it has not."""
        return OUTCOME_STATUSES.get(str(_type_of(self.events[-1])))

    @property
    def is_reset(self) -> bool:
        """Whether a reset has begun it."""
        return any(_type_of(event) == RESET for event in self.events)

    def decode(self) -> list[Event]:
        """Its events.

        Raises:
            OrchestrationUnreadable: one of them is not as this version knows it.
        """
        found = []
        for number, value in enumerate(self.events, 1):
            try:
                found.append(read_event(value))
            except NotSerializable as error:
                raise OrchestrationUnreadable(f"event {number} cannot be read: {error}") from error
        return found


@frozen(kw_only=True)
class ExportedHistory:
    """The result of `read_export`."""

    instance_id: str
    name: str
    """Name of the orchestration."""
    session_id: str | None
    suspended_for: str | None
    """The class of the error for which the instance was suspended in the last of the executions; None: it was not."""
    suspension_message: str | None
    """The text of that error."""
    encoded_in: str | None
    """Name of the database whose codec has encoded the payloads; None: they are in the clear."""
    executions: Sequence[ExportedExecution]


def head(
    instance_id: str,
    name: str,
    session_id: str | None,
    status: str,
    suspension: tuple[str, str] | None,
    *,
    encoded_in: str | None = None,
) -> dict[str, Any]:
    """The document without its executions. ``suspension``: the class and the text of the error."""
    suspended_for, message = suspension or (None, None)
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **({} if encoded_in is None else {"encoded_in": encoded_in}),
        "instance_id": instance_id,
        "name": name,
        "session_id": session_id,
        "status": status,
        "suspended_for": suspended_for,
        "suspension_message": message,
    }


def read_export(document: object) -> ExportedHistory:
    """Read a document, as JSON values.

    Raises:
        InvalidInput: it is something else, or of a later version, or has no events.
    """
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise InvalidInput("this is not a history: `affinity history ID --export FILE` writes one")
    if (version := document.get("format_version")) != FORMAT_VERSION:
        raise InvalidInput(f"the history has the format version {version!r}, and this release reads {FORMAT_VERSION}")
    try:
        executions = [_execution(each) for each in document["executions"]]
        found = ExportedHistory(
            instance_id=_text(document["instance_id"]),
            name=_text(document["name"]),
            session_id=_optional(document.get("session_id")),
            suspended_for=_optional(document.get("suspended_for")),
            suspension_message=_optional(document.get("suspension_message")),
            encoded_in=_optional(document.get("encoded_in")),
            executions=[each for each in executions if each.events],
        )
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"the history is damaged: {type(error).__name__}: {error}") from error
    if not found.executions:
        raise InvalidInput("the history has no events")
    return found


def parse_export(text: str, where: str) -> ExportedHistory:
    """Read a document as text; ``where`` it is from, for messages.

    Raises:
        InvalidInput: as for `read_export`, or it is no JSON.
    """
    try:
        return read_export(read_json(text))
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error


def version_of(events: Sequence[Event]) -> str | None:
    """The version of the orchestration that an execution runs; None: it has not begun."""
    return next((event.version for event in events if isinstance(event, OrchestrationStarted)), None)


def replayed(executions: Sequence[ExportedExecution]) -> Iterator[ExportedExecution]:
    """The executions that are to match the code, newest first: the last one, and each that has continued as new.

    Of an execution that a reset has replaced, the part that counts is the beginning of the next one. Another one that
    has ended belongs to an instance that was started again under this id, whose session may be another.
    """
    after = executions[-1]
    yield after
    for execution in reversed(executions[:-1]):
        if execution.status == "continued":
            yield execution
        elif execution.status is not None and not after.is_reset:
            return
        after = execution


def _execution(value: Any) -> ExportedExecution:
    if not isinstance(value["execution_id"], int) or not isinstance(value["events"], list):
        raise TypeError("an execution must have a number and a list of events")
    return ExportedExecution(execution_id=value["execution_id"], events=value["events"])


def _type_of(event: object) -> object:
    return event.get("type") if isinstance(event, dict) else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, not {type(value).__name__}")
    return value


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)
