"""A kind of conversations: its names, its events, its bounds, and the messages to its instances.

The instance of a conversation waits for one external event, `SIGNAL`. So it has one wait at a time,
for messages of all types: a wake costs it no more events than any activity.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict

from pydantic_core import to_json

from affinity.conversation.events import EventTypes
from affinity.conversation.journal import PARKED_MARK, SEQ_MARK, JournalStart
from affinity.headers import Headers
from affinity.limits import MAX_REQUESTS, MAX_REVISITS, MAX_WAKE_ENTRIES, check_integer
from affinity.orchestration.events import EventRaised, OrchestrationStarted
from affinity.orchestration.wire import ANY_EXECUTION, encode_message
from affinity.records import frozen

SUFFIX: Final = ".conversation"
"""Ending of the names of the orchestrations of conversations."""

NOUN: Final = "conversations"
"""See `affinity.orchestration.app.HasFunctions`."""

SIGNAL: Final = "conversation"
"""Name of the external event of all messages to a conversation's instance."""

SignalType: TypeAlias = Literal["wake", "interrupt", "resume", "terminate"]


class Signal(TypedDict):
    """The data of `SIGNAL`."""

    type: SignalType
    seq: NotRequired[int]  # of the entry that it announces
    cancel: NotRequired[bool]  # of an interrupt: cancel the wake under way
    cascade: NotRequired[bool]  # of a termination: terminate the children too
    parked: NotRequired[bool]  # of a termination: the next wake was parked, and no input will unpark it


@frozen(kw_only=True)
class ConversationLimits:
    """Bounds of the conversations of one kind.

    Raises:
        InvalidOptions: a bound is not an integer, or is above its maximum.
    """

    inputs: int = 100
    """Inputs that one wake processes; the next wake, which follows immediately, processes the rest."""
    entries: int = 1_000
    """Entries that one wake may append."""
    requests: int = 100
    """Pending requests."""
    revisits: int = 100
    """Pending revisits, without the revisits that are due in the wake: each wake reads all of them."""

    def __post_init__(self) -> None:
        most = {"inputs": MAX_WAKE_ENTRIES, "entries": MAX_WAKE_ENTRIES}
        most |= {"requests": MAX_REQUESTS, "revisits": MAX_REVISITS}
        for name, bound in most.items():
            check_integer(getattr(self, name), name, 1, bound)


@frozen(kw_only=True)
class ConversationKind:
    """The conversations of one kind, as clients and workers need them."""

    name: str
    """The kind of the journals, and of the records of state."""
    types: EventTypes
    limits: ConversationLimits

    @property
    def orchestration(self) -> str:
        """Name of the orchestration: one instance for each conversation."""
        return orchestration_of(self.name)

    @property
    def activity(self) -> str:
        """Name of the activity that runs a wake."""
        return f"{self.name}.wake"

    @property
    def run(self) -> str:
        """Name of the orchestration that does the runs and calls of a wake."""
        return f"{self.name}.run"

    @property
    def report(self) -> str:
        """Name of the activity that reports the end of such a run."""
        return f"{self.name}.report"

    def start(self, parent: str | None = None, home: str | None = None) -> JournalStart:
        """Return the start of a conversation, for its first input; ``parent``: the conversation whose wake creates it;
        ``home``: the session on whose lease its wakes run.
        """
        return start_of(self.name, parent, home)


def start_of(kind: str, parent: str | None = None, home: str | None = None) -> JournalStart:
    """Return `ConversationKind.start` by the name of the kind."""
    options = {"salt": secrets.token_hex(6)}
    name = orchestration_of(kind)
    message = start_message(name, options if home is None else {**options, "home": home})
    return JournalStart(name=name, start=message, generation=secrets.token_hex(8), parent=parent)


def start_message(
    orchestration: str, given: Mapping[str, Any], trace: str | None = None, headers: Headers | None = None
) -> str:
    """Return a message that starts an instance of an orchestration with this input, in this trace context and with
    these headers.
    """
    encoded = to_json(given).decode()
    started = OrchestrationStarted(orchestration, version="", input=encoded, headers=headers, trace=trace)
    return encode_message(ANY_EXECUTION, started)


def orchestration_of(kind: str) -> str:
    """Return the name of the orchestration of a kind."""
    return f"{kind}{SUFFIX}"


def _message(signal: SignalType, **fields: str) -> str:
    others = "".join([f',"{name}":{value}' for name, value in fields.items()])
    return encode_message(ANY_EXECUTION, EventRaised(name=SIGNAL, data=f'{{"type":"{signal}"{others}}}'))


WAKE_MESSAGE: Final = _message("wake", seq=SEQ_MARK)
"""Announces an input."""

RESUME_MESSAGE: Final = _message("resume")
"""Tries again, or reads whether there is something to do."""


def interrupt_message(*, cancel: bool = False) -> str:
    """Return a message that announces an interrupt; ``cancel``: it cancels the running wake, which else ends first."""
    return _message("interrupt", seq=SEQ_MARK, cancel="true" if cancel else "false")


def terminate_message(*, cascade: bool = False) -> str:
    """Return a message that ends the instance; ``cascade``: its children are terminated too."""
    return _message("terminate", seq=SEQ_MARK, cascade="true" if cascade else "false", parked=PARKED_MARK)
