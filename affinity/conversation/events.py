"""The events of conversations: typed, distinguished by ``kind``, extended by applications.

An application adds a kind with a subclass of `JournalEvent`, and names it in ``Conversations(..., events=[...])``::

    class Rated(affinity.conversation.JournalEvent):
        stars: int
        kind: Literal["user.rated"] = "user.rated"

An entry of a kind that this code does not know, or that does not fit its class, is read as `UnknownEvent`: so an older
release can read the events of a newer release.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, dataclass_transform

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, JsonValue, PrivateAttr
from pydantic_core import from_json, to_json

from affinity.conversation.journal import Entry
from affinity.errors import InvalidId, InvalidInput, InvalidOptions, WakeMisuse, problem_of
from affinity.field_words import DocWithFields, ModelType
from affinity.headers import sent_headers
from affinity.limits import MAX_EVENT_BYTES, MAX_KIND_BYTES, check_depth, check_id, check_payload
from affinity.orchestration.codec import Codec
from affinity.records import frozen, raise_unreadable
from affinity.tracing import current_context
from affinity.user_code import pass_interrupt

Content: TypeAlias = str | list[dict[str, JsonValue]]
"""Text, or blocks as the formats of messages have them: ``{"type": "text", "text": …}`` and others."""


if TYPE_CHECKING:

    @dataclass_transform(kw_only_default=False, frozen_default=True, field_specifiers=(Field, PrivateAttr))
    class _EventType(ModelType):
        """The metaclass of events, for type checkers: the metaclass of models declares all fields keyword-only."""

    class _HasKind:
        """Declares ``kind``, which as a field would be the first one by position. ``Any``: subclasses narrow it."""

        kind: Any
else:
    _EventType, _HasKind = ModelType, object


def _short_description(schema: dict[str, Any], cls: type) -> None:
    """Describe a class by its own words, whether or not its fields were added (`affinity.field_words`)."""
    if isinstance(docstring := vars(cls).get("__doc__"), DocWithFields):
        schema["description"] = inspect.cleandoc(docstring.words)


class JournalEvent(BaseModel, _HasKind, metaclass=_EventType):
    """Base of all events. Fields can be given by position, in the order of their declaration.

    A subclass declares ``kind`` last, as a ``Literal`` with a default: by it events are distinguished, and found.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True, json_schema_extra=_short_description
    )

    def __init__(self, *args: Any, **fields: Any) -> None:
        """Raise `pydantic.ValidationError` for a value that does not fit, and TypeError for an unknown field."""
        cls = type(self)
        # The constructor of an application is called for entries too, which may have fields of a later release.
        if not cls.__pydantic_custom_init__ and (unknown := unknown_fields(cls, fields)):
            raise TypeError(f"{cls.__name__} has no field {unknown[0]!r}; it has {', '.join(cls.model_fields)}")
        super().__init__(**(_by_name(cls, args, fields) if args else fields))

    # Validation need not call this constructor, which only adds arguments by position.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def _by_name(cls: type[BaseModel], args: tuple[Any, ...], fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields given by position and by name, all by name."""
    names = list(cls.model_fields)[: len(args)]
    if len(args) > len(names):
        raise TypeError(f"{cls.__name__} takes {len(names)} fields, and was given {len(args)}")
    if twice := fields.keys() & set(names):
        raise TypeError(f"{cls.__name__} was given {sorted(twice)[0]!r} twice")
    return dict(zip(names, args, strict=True)) | fields


def unknown_fields(cls: type[BaseModel], given: Iterable[str]) -> Sequence[str]:
    """Return the names that are not fields of a class. Its validation would ignore them.

    They may be read: a newer release has more fields. They must not be written: one may be misspelt.
    """
    names = cls.model_fields.keys()
    unknown = [name for name in given if name not in names]
    if not unknown or cls.model_config.get("extra") == "allow":
        return ()
    aliases = {alias for field in cls.model_fields.values() for alias in _aliases(field.validation_alias)}
    return [name for name in unknown if name not in aliases]


def _aliases(alias: str | AliasPath | AliasChoices | None) -> Iterator[object]:
    match alias:
        case AliasChoices():
            for choice in alias.choices:
                yield from _aliases(choice)
        case AliasPath():
            yield alias.path[0]
        case str():
            yield alias


def text_of(content: Content) -> str:
    """Return the text of a content: the texts of its blocks, joined."""
    if isinstance(content, str):
        return content
    return "".join([text for block in content if isinstance(text := block.get("text"), str)])


class UnknownEvent(JournalEvent):
    """An event that this code has no class for, or that does not fit its class."""

    kind: str
    data: dict[str, JsonValue] = Field(default_factory=dict)  # its fields


# -- from outside


class UserMessage(JournalEvent):
    """A message to the agent."""

    content: Content
    kind: Literal["user.message"] = "user.message"

    @property
    def text(self) -> str:
        """The text of the content."""
        return text_of(self.content)


class DefineOutcome(JournalEvent):
    """The goal of the conversation."""

    outcome: str
    criteria: list[str] = Field(default_factory=list)
    kind: Literal["user.define_outcome"] = "user.define_outcome"


class UserInterrupt(JournalEvent):
    """Redirects the conversation: pending requests and revisits are dropped, and answers that no wake has read are
    cleared, before the next wake.
    """

    reason: str = ""
    cancel: bool = False  # the wake under way is cancelled; otherwise it ends first
    cascade: bool = False  # the children are interrupted too
    kind: Literal["user.interrupt"] = "user.interrupt"


class AnswerEvent(JournalEvent):
    """Base of the answers to requests."""

    answers: ClassVar[str]
    """The kind of the requests that it answers."""

    request_id: str

    @classmethod
    def expired_answer(cls, request_id: str) -> JournalEvent:
        """Return the input of a wake when no answer came in time."""
        return RequestExpired(request_id)


class ConfirmationAnswer(AnswerEvent):
    """Allows or refuses a tool: the answer to `ToolConfirmation`."""

    answers: ClassVar[str] = "agent.tool_confirmation"

    allowed: bool
    reason: str = ""
    expired: bool = False  # no answer came in time, or it was withdrawn: refused
    kind: Literal["user.tool_confirmation"] = "user.tool_confirmation"

    @classmethod
    def expired_answer(cls, request_id: str) -> JournalEvent:
        """Return a refusal."""
        return cls(request_id, allowed=False, reason="no answer came in time", expired=True)


class CustomToolResult(AnswerEvent):
    """The result of a tool that the client has run: the answer to `CustomToolUse`."""

    answers: ClassVar[str] = "agent.custom_tool_use"

    result: JsonValue = None
    is_error: bool = False
    expired: bool = False  # no answer came in time, or it was withdrawn
    kind: Literal["user.custom_tool_result"] = "user.custom_tool_result"

    @classmethod
    def expired_answer(cls, request_id: str) -> JournalEvent:
        """Return an error."""
        return cls(request_id, "no answer came in time", is_error=True, expired=True)


# -- of the agent


class AgentMessage(JournalEvent):
    """A message of the agent."""

    content: Content
    usage: dict[str, int] = Field(default_factory=dict)  # of the model's call: tokens by name
    message_id: str = ""  # the same for a text and the calls of one reply of the model
    kind: Literal["agent.message"] = "agent.message"

    @property
    def text(self) -> str:
        """The text of the content."""
        return text_of(self.content)


class ToolUse(JournalEvent):
    """The agent uses a tool that runs in the wake."""

    tool: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    tool_use_id: str = ""
    usage: dict[str, int] = Field(default_factory=dict)  # of the model's call, if no message has it
    message_id: str = ""
    raw_arguments: str | None = None  # as the model gave them, if that was no JSON object
    call_key: str = ""  # unique: by it a result belongs to its call; the ids of models repeat. Empty: by the id
    kind: Literal["agent.tool_use"] = "agent.tool_use"


class ToolResult(JournalEvent):
    """The result of a tool."""

    tool_use_id: str
    result: JsonValue = None
    is_error: bool = False
    provisional: bool = False  # the call waits for an answer: another result follows
    call_key: str = ""  # of the call
    kind: Literal["agent.tool_result"] = "agent.tool_result"


class RequestEvent(JournalEvent):
    """Base of the requests: see `Wake.require`. An answer is an `AnswerEvent` of its kind.

    The console shows three fields to the person who answers, if a class has them: ``title``; ``summary``, a sentence
    about this request; and ``dangerous``, whether to look a second time before it is allowed.
    """


class ToolConfirmation(RequestEvent):
    """Asks a person whether the agent may use a tool."""

    tool: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    tool_use_id: str = ""
    request_id: str = ""  # set by `Wake.require`
    call_key: str = ""  # of the call
    title: str = ""  # of the tool, for the person who answers
    summary: str = ""  # a sentence about the call
    dangerous: bool = False  # whether to look a second time
    kind: Literal["agent.tool_confirmation"] = "agent.tool_confirmation"


class CustomToolUse(RequestEvent):
    """Asks the client to run a tool."""

    tool: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    tool_use_id: str = ""
    usage: dict[str, int] = Field(default_factory=dict)
    message_id: str = ""
    request_id: str = ""  # set by `Wake.require`
    call_key: str = ""  # the key of the `ToolUse`
    title: str = ""  # of the tool, for the person who gives the result
    summary: str = ""  # a sentence about the call
    kind: Literal["agent.custom_tool_use"] = "agent.custom_tool_use"


# -- of the conversation itself


class ConversationStatusChanged(JournalEvent):
    """The conversation has another status, which does not follow from the entries around it."""

    status: Literal["rescheduling", "running", "terminated"]  # running: it was resumed
    reason: str = ""
    retry_after: float | None = None  # seconds until the next attempt of the wake
    kind: Literal["conversation.status_changed"] = "conversation.status_changed"


StopReason: TypeAlias = Literal["end_turn", "truncated", "requires_action", "revisit", "more", "failed"]
"""Why a wake has ended: it has nothing to do, or was cut off (`Wake.note_truncated`) and has nothing else to do; it
waits for an answer, waits for a revisit, goes on with inputs that are there, or failed for good.
"""


class ConversationIdle(JournalEvent):
    """A wake has ended, and why."""

    stop_reason: StopReason
    requests: list[str] = Field(default_factory=list)  # ids of the pending requests
    error: SpanError | None = None
    revisits: list[str] = Field(default_factory=list)  # of a failed wake: keys of the revisits that it was given
    kind: Literal["conversation.idle"] = "conversation.idle"


class InputsRead(JournalEvent):
    """A wake that had read some inputs has read more, the next ones: see `affinity.agent.run_loop`. They stand before
    this entry in what a model reads. Counts, since numbers of entries change in merges and imports.
    """

    inputs: int
    before: int
    kind: Literal["conversation.inputs_read"] = "conversation.inputs_read"


class DeadLetters(JournalEvent):
    """Inputs of a wake that has failed for good: they are not processed, and later wakes go on behind them. See
    `ConversationHandle.dead_letters`.
    """

    inputs: list[int]  # numbers
    revisits: list[str]  # keys
    error: SpanError
    kind: Literal["conversation.dead_letters"] = "conversation.dead_letters"


class RevisitDue(JournalEvent):
    """The agent comes back: `run_loop` appends it, for the model, for each revisit that is due."""

    reason: str = ""
    note: JsonValue = None
    kind: Literal["agent.revisit_due"] = "agent.revisit_due"


OutcomeStatus: TypeAlias = Literal["open", "reached", "given_up"]


class OutcomeUpdated(JournalEvent):
    """The agent has set the goal of the conversation, or reports its progress. Replaces the former goal."""

    outcome: str
    criteria: list[str] = Field(default_factory=list)
    status: OutcomeStatus = "open"
    note: str = ""  # why
    kind: Literal["agent.outcome_updated"] = "agent.outcome_updated"


class ContextSummary(JournalEvent):
    """A summary that a model reads in place of earlier entries, which stay in the journal: see
    `affinity.agent.ContextWindow`.
    """

    content: Content
    behind: str  # id of the last wake that it stands for; numbers of entries change in merges and imports
    usage: dict[str, int] = Field(default_factory=dict)  # of the model's call
    kind: Literal["agent.context_summary"] = "agent.context_summary"


class RequestExpired(JournalEvent):
    """No answer to a request of the application came in time. The built-in requests are answered with a refusal."""

    request_id: str
    kind: Literal["conversation.request_expired"] = "conversation.request_expired"


class SpanError(BaseModel, metaclass=ModelType):
    """The error with which a span has ended."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    type: str  # name of the exception's class
    message: str
    stack: str = ""


class SpanStarted(JournalEvent):
    """The beginning of a wake, or of a part of it such as a tool."""

    span: str  # id, unique in its wake
    name: str
    parent: str | None = None  # span; None: the wake itself
    attempt: int = 1
    worker: str = ""
    started_at: datetime | None = None  # by the worker's clock
    revisits: list[str] = Field(default_factory=list)  # of a wake: keys of its due revisits
    read: int | None = None  # of a wake: up to which number it has read the inputs
    kind: Literal["span.started"] = "span.started"


class SpanCompleted(JournalEvent):
    """The end of a wake, or of a part of it."""

    span: str
    name: str
    result: Literal["ok", "error", "cancelled"] = "ok"
    started_at: datetime | None = None  # by the worker's clock
    seconds: float = 0.0
    attempt: int = 1
    worker: str = ""
    error: SpanError | None = None
    kind: Literal["span.completed"] = "span.completed"


class ChildDelegated(JournalEvent):
    """A wake has given work to a child."""

    child: str
    delegation: str  # id
    conversations: str  # kind of the child
    max_cycles: int
    kind: Literal["child.delegated"] = "child.delegated"


ChildOutcome: TypeAlias = Literal["completed", "max_cycles", "failed", "terminated"]
"""How a delegation has ended: done, its cycles used up, a wake failed for good, or the child was terminated. ``failed``
too when it could not take the work at the commit of the parent's wake: then the error is a ``DelegationRefused``, whose
message is an `affinity.conversation.journal.AppendOutcome`.
"""


class ChildEnded(JournalEvent):
    """A delegation has ended: an input of the parent."""

    child: str
    delegation: str
    outcome: ChildOutcome
    result: JsonValue = None  # the value that the child gave to `Wake.finish`, or the text of its last message
    cycles: int = 0
    error: SpanError | None = None
    kind: Literal["child.ended"] = "child.ended"


class RunStarted(JournalEvent):
    """A wake has started an orchestration: see `Wake.start`."""

    run: str  # id
    orchestration: str  # name
    input: JsonValue = None
    instance_id: str | None = None  # of the orchestration, if the wake has chosen it
    kind: Literal["run.started"] = "run.started"


class RunEnded(JournalEvent):
    """An orchestration that a wake has started has ended: an input of the conversation."""

    run: str
    orchestration: str
    result: JsonValue = None
    error: SpanError | None = None  # None: it has completed
    kind: Literal["run.ended"] = "run.ended"


class CallStarted(JournalEvent):
    """A wake has called an activity: see `Wake.call`."""

    call: str  # id
    activity: str  # name
    input: JsonValue = None
    kind: Literal["call.started"] = "call.started"


class CallEnded(JournalEvent):
    """An activity that a wake has called has ended: an input of the conversation."""

    call: str
    activity: str
    result: JsonValue = None
    error: SpanError | None = None  # None: it has completed
    kind: Literal["call.ended"] = "call.ended"


ConversationIdle.model_rebuild()
DeadLetters.model_rebuild()

BUILT_IN: Final[tuple[type[JournalEvent], ...]] = (
    UserMessage,
    RevisitDue,
    ContextSummary,
    OutcomeUpdated,
    DefineOutcome,
    UserInterrupt,
    ConfirmationAnswer,
    CustomToolResult,
    AgentMessage,
    ToolUse,
    ToolResult,
    ToolConfirmation,
    CustomToolUse,
    ConversationStatusChanged,
    ConversationIdle,
    DeadLetters,
    InputsRead,
    RequestExpired,
    SpanStarted,
    SpanCompleted,
    ChildDelegated,
    ChildEnded,
    RunStarted,
    RunEnded,
    CallStarted,
    CallEnded,
)


# -- entries


@frozen()
class JournalEntry:
    """An entry of a journal, read."""

    seq: int
    """Its number."""
    event: JournalEvent
    event_id: str | None
    """The id under which it was sent; None: it has no event id."""
    wake_id: str | None
    """The wake that wrote it; None: it came from outside."""
    recorded_at: datetime
    """The time of the commit by the database's clock."""
    payload: str
    """The event as JSON text, as it is stored."""
    is_copied: bool = False
    """A merge has it from its right side: numbers in the event are numbers of that conversation."""

    @property
    def kind(self) -> str:
        """The kind of the event."""
        kind: str = self.event.kind
        return kind

    def to_json(self) -> str:
        """Return the entry as one JSON object, on one line."""
        about = {"event_id": self.event_id, "wake_id": self.wake_id, "recorded_at": self.recorded_at}
        about_json = to_json({name: value for name, value in about.items() if value is not None}).decode()
        return f'{{"seq":{self.seq},"event":{_without_meta(self.payload)},{about_json[1:]}'


# -- reading and writing

_KIND: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
_NO_OUTPUT: Final = {
    "user.": "clients send it. Use wake.revisit() to run again later, wake.delegate() to give work to a child, or "
    "client.conversation(…).send() for another conversation",
    "conversation.": "the conversation writes it by itself. Return from the handler to end the wake, or raise to fail",
    "span.": "the conversation writes it by itself. Use wake.span()",
    "child.": "the conversation writes it by itself. Use wake.delegate(), and wake.finish() for the result of a child",
    "run.": "the conversation writes it by itself. Use wake.start()",
    "call.": "the conversation writes it by itself. Use wake.call()",
}
"""Beginnings of the kinds that no handler appends: who writes them, and what to use."""

_NO_INPUT: Final = ("conversation.", "span.", "child.", "run.", "call.", "agent.")
_OWN_EVENT_IDS: Final = re.compile(
    r"(delegation|interrupt|trace|cancelled|conversation\.status_changed|(child|run|call)\.ended)/"
)
"""How event ids begin that conversations give to what they send each other: under one of these a client's event would
take the place of that.
"""
_META: Final = ',"_":{'


class EventMeta(BaseModel):
    """Data that travels with an input, as its field ``_``. It does not belong to the event, and no client gives it."""

    trace: str | None = None  # trace context of the sender (`affinity.tracing`)
    headers: dict[str, str] | None = None  # of the sender (`affinity.headers`)
    delegation: str | None = None  # id
    parent: str | None = None  # the conversation that delegates
    parent_kind: str | None = None
    parent_journal: int | None = None  # journal id: another conversation that has its id by now has not delegated
    max_cycles: int = 0


NO_META: Final = EventMeta()


class EventTypes:
    """The kinds of events of one kind of conversations: built-in and of the application."""

    def __init__(self, events: Iterable[type[JournalEvent]] = ()) -> None:
        """Raise `InvalidOptions` for a class that is no event class, an answer without a kind, or a kind in use."""
        self._types: dict[str, type[JournalEvent]] = {kind_of(event): event for event in BUILT_IN}
        for event in events:
            kind = kind_of(event)
            if issubclass(event, AnswerEvent) and not isinstance(getattr(event, "answers", None), str):
                raise InvalidOptions(
                    f"events: {event.__name__} is an answer: give it answers, the kind of its requests"
                )
            if self._types.setdefault(kind, event) is not event:
                raise InvalidOptions(f"events: {event.__name__} has the kind {kind!r}, which is taken")
        self._codecs: dict[str, Codec] = {}  # by kind, of the events that were written

    @property
    def types(self) -> Mapping[str, type[JournalEvent]]:
        """The classes, by kind."""
        return self._types

    def input_types(self) -> Mapping[str, type[JournalEvent]]:
        """Return the classes of the application whose events are inputs, by kind."""
        own = {kind: each for kind, each in self._types.items() if each not in BUILT_IN}
        return {kind: each for kind, each in own.items() if not kind.startswith(_NO_INPUT)}

    def has(self, event: JournalEvent) -> bool:
        """Return whether an event is of these kinds; an `UnknownEvent` is, unless its kind has a class."""
        known = self._types.get(getattr(event, "kind", ""))
        return known is type(event) or (known is None and type(event) is UnknownEvent)

    def expired_answer(self, request_kind: str, request_id: str) -> JournalEvent:
        """Return the input of a wake when no answer to a request of this kind came in time."""
        for event in self._types.values():
            if issubclass(event, AnswerEvent) and event.answers == request_kind:
                return event.expired_answer(request_id)
        return RequestExpired(request_id)

    def withdrawn_answer(self, request_kind: str, request_id: str) -> JournalEvent:
        """Return the input of a wake when a request of this kind was withdrawn."""
        match answer := self.expired_answer(request_kind, request_id):
            case ConfirmationAnswer():
                return answer.model_copy(update={"reason": "it was withdrawn"})
            case CustomToolResult():
                return answer.model_copy(update={"result": "it was withdrawn"})
            case _:
                return answer

    def kinds_derived_from(self, *bases: type[JournalEvent]) -> Sequence[str]:
        """Return the kinds whose classes are, or derive from, one of these."""
        return [kind for kind, each in self._types.items() if issubclass(each, bases)]

    @property
    def kinds_with_usage(self) -> Sequence[str]:
        """The kinds whose events have a ``usage``."""
        return [kind for kind, each in self._types.items() if "usage" in each.model_fields]

    def encode(self, event: JournalEvent, meta: EventMeta = NO_META, *, limit: int = MAX_EVENT_BYTES) -> str:
        """Return the event as JSON text.

        An `UnknownEvent` is written as the event that it stands for: for programs that pass events on.

        Raises:
            InvalidInput: the event is not of these kinds; or an `UnknownEvent` of a kind that has a class, or with the
                field ``_``, in which what travels beside the event is.
            NotSerializable: a value in it has no JSON form, or would be read back as another one.
            PayloadTooLarge: it has more bytes than ``limit``, or is nested too deep.
        """
        if not self.has(event):
            raise InvalidInput(_foreign(event))
        known = self._types.get(event.kind)
        what = f"event {event.kind!r}"
        if isinstance(event, UnknownEvent):
            _check_unknown(event)
            text = _UNKNOWN.encode({**event.data, "kind": event.kind})
        else:
            assert known is not None
            codec = self._codecs.get(event.kind) or self._codecs.setdefault(event.kind, Codec(known, what))
            text = codec.encode(event)
        check_payload(check_depth(text, what), what, limit)
        return text if meta is NO_META else f'{text[:-1]},"_":{meta.model_dump_json(exclude_defaults=True)}}}'

    def decode(self, kind: str, payload: str) -> JournalEvent:
        """Return the event of an entry; `UnknownEvent` when this code has no class for it, or it does not fit.

        Raises:
            PayloadUnreadable: the entry is encoded, and cannot be decoded.
        """
        known = self._types.get(kind)
        if known is not None:
            try:
                return known.model_validate_json(payload, by_alias=True, by_name=True)
            except BaseException as error:  # written by the code of another release, or its types are the application's
                pass_interrupt(error)
        raise_unreadable(payload)
        return UnknownEvent(kind=kind, data=_fields_of(payload))

    def read(self, entry: Entry) -> JournalEntry:
        """Return an entry of the database with its event."""
        return JournalEntry(
            entry.seq,
            self.decode(entry.kind, entry.payload),
            entry.event_id,
            entry.wake_id,
            entry.recorded_at,
            entry.payload,
            entry.is_copied,
        )


def _check_unknown(event: UnknownEvent) -> None:
    check_kind(event.kind)
    if "_" in event.data:
        raise InvalidInput(f"event {event.kind!r} has the field '_', which is not for events")


_UNKNOWN: Final = Codec(dict[str, Any], "an event of an unknown kind")


def kind_of(event: type[JournalEvent]) -> str:
    """Return the kind of a class of events.

    Raises:
        InvalidOptions: it is not a class of events, or its kind is malformed.
    """
    if not (isinstance(event, type) and issubclass(event, JournalEvent)):
        raise InvalidOptions(f"events: {event!r} is no subclass of JournalEvent")
    field = event.model_fields.get("kind")
    kind = None if field is None else field.default
    try:
        return check_kind(kind)
    except InvalidId as error:
        raise InvalidOptions(f"events: {event.__name__}: {error}; declare it as a Literal with a default") from None


def check_kind(kind: object) -> str:
    """Return ``kind`` if it is one: words of lower-case letters, digits and "_", two at least, with dots between.

    Raises:
        InvalidId: it is anything else, or longer than `limits.MAX_KIND_BYTES`.
    """
    if not isinstance(kind, str) or len(kind) > MAX_KIND_BYTES or _KIND.fullmatch(kind) is None:
        raise InvalidId(f"an event's kind is like 'user.message', of at most {MAX_KIND_BYTES} bytes, not {kind!r:.80}")
    return kind


def check_input(event: JournalEvent, event_id: str | None = None, refusal: type[InvalidInput] = InvalidInput) -> None:
    """Refuse events that neither a client nor a parent may send.

    Raises:
        InvalidInput: ``refusal``: no event, or one that only a wake writes.
        InvalidId: the event id is out of bounds.
    """
    if not isinstance(event, JournalEvent):
        raise refusal(f"{event!r:.80} is no event: send one, such as UserMessage(text)")
    if event.kind.startswith(_NO_INPUT):
        raise refusal(f"an event of kind {event.kind!r} is written by wakes only")
    if event_id is not None and _OWN_EVENT_IDS.match(check_id(event_id, "event id")):
        raise InvalidId(f"event id {event_id!r} is one of those that conversations give themselves: choose another")


def check_output(event: JournalEvent, types: EventTypes) -> None:
    """Refuse events that the handler of a wake may not append.

    Raises:
        WakeMisuse: no event of these conversations, or one that only clients or the conversation write.
    """
    if not isinstance(event, JournalEvent):
        raise WakeMisuse(f"{event!r:.80} is no event: append one, such as wake.append(AgentMessage(text))")
    for prefix, why in _NO_OUTPUT.items():
        if event.kind.startswith(prefix):
            raise WakeMisuse(f"a handler cannot append an event of kind {event.kind!r}: {why}")
    if not types.has(event):
        raise WakeMisuse(_foreign(event))


def _foreign(event: object) -> str:
    return f"{type(event).__name__} is no event of these conversations: name its class in events=[...]"


def meta_of_sender(*, traced: bool = True) -> EventMeta:
    """Return the `EventMeta` of an input that the calling code sends."""
    trace, headers = current_context() if traced else None, sent_headers()
    if trace is None and headers is None:
        return NO_META
    return EventMeta(trace=trace, headers=None if headers is None else dict(headers))


def meta_of(payload: str) -> EventMeta:
    """Return the `EventMeta` of an input; empty if it cannot be read."""
    if _META not in payload:
        return NO_META
    try:
        return EventMeta.model_validate(from_json(payload).get("_", {}))
    except ValueError:
        return NO_META


def _without_meta(payload: str) -> str:
    return payload if _META not in payload else to_json(_fields(payload)).decode()


def _fields_of(payload: str) -> dict[str, JsonValue]:
    """Return the fields of an event without the fields that every event has."""
    return {name: value for name, value in _fields(payload).items() if name != "kind"}


def _fields(payload: str) -> dict[str, JsonValue]:
    try:
        found = from_json(payload)
    except ValueError as error:
        return {"unreadable": problem_of(error)}
    return (
        {name: value for name, value in found.items() if name != "_"} if isinstance(found, dict) else {"value": found}
    )
