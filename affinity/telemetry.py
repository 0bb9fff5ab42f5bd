"""The session and the instance of the running code, and labels of the instance, in logs and traces.

Context variables hold them: a worker sets them in the task of an activity, the replay engine in the
variables of an execution, and the session layer the session around a block of a script. They follow `await`,
child tasks and `anyio.to_thread`; no other task sees them. While a worker or such a block runs, two hooks copy them:

* a log record factory, to the attributes ``affinity.session_id`` and ``affinity.instance_id`` of every record, and
  ``affinity.label.KEY`` for each label that a worker of this process shows (`KernelOptions.log_labels`). A filter
  would not do: a logger's filter does not see the records of its children, and a handler's filter may run in another
  thread;
* a span processor of OpenTelemetry, if that is in use, the session and these labels to the attributes of the same names
  of every span.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from typing import Any, Final, Protocol
from weakref import WeakSet

from affinity.redaction import redacted

logger: logging.Logger = logging.getLogger("affinity.telemetry")

SESSION_ATTRIBUTE: Final = "affinity.session_id"
"""Attribute of log records (None outside a session) and of spans (absent outside a session)."""

INSTANCE_ATTRIBUTE: Final = "affinity.instance_id"
"""Attribute of log records (None outside an orchestration and its activities)."""

LABEL_ATTRIBUTE: Final = "affinity.label."
"""Begins the attributes of log records and spans for the labels that workers show; then comes the key. Of log records
each is None, and of spans it is absent, where the instance has no such label.
"""


class Labelled(Protocol):
    """Something that has the labels of an instance as they are now."""

    @property
    def labels(self) -> Mapping[str, str] | None:
        """Texts by key."""
        ...


_session_id: ContextVar[str | None] = ContextVar(SESSION_ATTRIBUTE, default=None)
_instance_id: ContextVar[str | None] = ContextVar(INSTANCE_ATTRIBUTE, default=None)
_labelled: ContextVar[Labelled | None] = ContextVar(LABEL_ATTRIBUTE, default=None)
_shown: Counter[str] = Counter()  # keys of labels, with the number of workers that show each
_showing = threading.Lock()


def current_session_id() -> str | None:
    """The session of the calling code; None if there is none."""
    return _session_id.get()


enter_session: Final[Callable[[str | None], Token[str | None]]] = _session_id.set
"""Set the session of the current task, to its end; for code that starts a task, as a worker does. An orchestration's
is set in the context variables of its execution.

Set None too: a new task inherits the session of the task that starts it.
"""

enter_instance: Final[Callable[[str | None], Token[str | None]]] = _instance_id.set
"""Set the instance of the current task, to its end, in the same way."""


enter_labelled: Final[Callable[[Labelled | None], Token[Labelled | None]]] = _labelled.set
"""Set what has the labels of the instance of the current task, in the same way."""


def label_attributes(labels: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the attributes for those of the labels that workers of this process show."""
    if not _shown or not labels:
        return {}
    return {f"{LABEL_ATTRIBUTE}{key}": labels[key] for key in tuple(_shown) if key in labels}


@contextmanager
def _labels_shown(keys: Iterable[str]) -> Iterator[None]:
    """Show these labels while the block runs."""
    wanted = Counter(set(keys))
    with _showing:
        _shown.update(wanted)
    try:
        yield
    finally:
        with _showing:
            _shown.subtract(wanted)
            for key in wanted:
                if not _shown[key]:
                    del _shown[key]


@contextmanager
def session_scope(session_id: str | None) -> Iterator[None]:
    """Set the session of the code in the block, in logs and traces too; afterwards the former one is restored."""
    with instrumented():
        token = _session_id.set(session_id)
        try:
            yield
        finally:
            # A framework may leave the block in another context than it entered: nothing is to be restored there.
            with suppress(ValueError):
                _session_id.reset(token)


@contextmanager
def instrumented(labels: Iterable[str] = ()) -> Iterator[None]:
    """Add session and instance to log records, and the session to spans, while the block runs; blocks may overlap.

    The tracer provider is the one in use on entry; a later one is not instrumented.

    Args:
        labels: keys of labels to add to both.
    """
    _mark_spans()
    _log_records.install()
    try:
        with _labels_shown(labels):
            yield
    finally:
        _log_records.remove()


# -- log records


class _LogRecords:
    """Wraps the process's log record factory, once, while there are users."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._users = 0

    def install(self) -> None:
        with self._guard:
            self._users += 1
            # A factory that other code has wrapped could not be removed, and is still in use: add no second one.
            if self._users == 1 and not hasattr(logging.makeLogRecord({}), SESSION_ATTRIBUTE):
                logging.setLogRecordFactory(_SessionStamp(logging.getLogRecordFactory()))

    def remove(self) -> None:
        with self._guard:
            self._users -= 1
            factory = logging.getLogRecordFactory()
            if self._users == 0 and isinstance(factory, _SessionStamp):
                logging.setLogRecordFactory(factory.former)


class _SessionStamp:
    """A log record factory that adds session and instance to the records of another factory."""

    def __init__(self, former: Callable[..., logging.LogRecord]) -> None:
        self.former = former

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.former(*args, **kwargs)
        record.__dict__[SESSION_ATTRIBUTE] = _session_id.get()
        record.__dict__[INSTANCE_ATTRIBUTE] = _instance_id.get()
        if _shown:
            labelled = _labelled.get()
            found = (None if labelled is None else labelled.labels) or {}
            for key in tuple(_shown):
                record.__dict__[f"{LABEL_ATTRIBUTE}{key}"] = found.get(key)
        return record


_log_records = _LogRecords()


# -- spans


class _SpanMarker:
    """A span processor as the SDK wants it, without its base class: the SDK need not be installed."""

    def on_start(self, span: Any, parent_context: object = None) -> None:
        session_id = _session_id.get()
        if session_id is not None:
            span.set_attribute(SESSION_ATTRIBUTE, session_id)
        if _shown and (labelled := _labelled.get()) is not None:
            span.set_attributes(label_attributes(labelled.labels))

    def _on_ending(self, span: object) -> None:
        """Nothing to do; the SDK calls it."""

    def on_end(self, span: object) -> None:
        """Nothing to do."""

    def shutdown(self) -> None:
        """Nothing to do."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is buffered."""
        return True


_marked: WeakSet[Any] = WeakSet()  # tracer providers; a processor cannot be removed, and does nothing outside a session
_marking = threading.Lock()

_reported: set[type[Exception]] = set()


@contextmanager
def contained() -> Iterator[None]:
    """Code of OpenTelemetry: what it raises is logged, once for each class of errors, and fails no work."""
    try:
        yield
    except Exception as error:
        if type(error) not in _reported:
            _reported.add(type(error))
            logger.warning("OpenTelemetry has failed; more of these are not logged", exc_info=redacted(error))


def tracing_api() -> Any:
    """OpenTelemetry's tracing API; None: the application has not imported it, and so has set no provider."""
    return sys.modules.get("opentelemetry.trace")


@contained()
def _mark_spans() -> None:
    api = tracing_api()
    provider = api.get_tracer_provider() if api is not None else None
    add = getattr(provider, "add_span_processor", None)
    with _marking:
        if add is not None and provider not in _marked:
            _marked.add(provider)
            add(_SpanMarker())
