"""The ambient session: where it reaches, where it ends, and what logs and traces show of it."""

from __future__ import annotations

import contextvars
import logging
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from affinity.telemetry import SESSION_ATTRIBUTE, current_session_id, enter_session, instrumented, session_scope
from tests.support.span_exporter import session_of, traced

logger = logging.getLogger("tests.telemetry")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Each test leaves the process's record factory as it was."""
    before = logging.getLogRecordFactory()
    yield
    assert logging.getLogRecordFactory() is before


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with traced() as found:
        yield found


def logged(caplog: pytest.LogCaptureFixture, text: str) -> list[Any]:
    """The sessions of the records with that text; "absent" for a record that knows no session."""
    return [getattr(one, SESSION_ATTRIBUTE, "absent") for one in caplog.records if one.getMessage() == text]


# -- the variable


def test_scopes_nest_and_end() -> None:
    assert current_session_id() is None
    with session_scope("a"):
        with session_scope("b"):
            assert current_session_id() == "b"
        assert current_session_id() == "a"
        with session_scope(None):
            assert current_session_id() is None
    assert current_session_id() is None


def test_a_scope_ends_with_an_error() -> None:
    with pytest.raises(ValueError, match="mine"), session_scope("a"):
        raise ValueError("mine")
    assert current_session_id() is None


def test_a_scope_may_be_left_in_another_context() -> None:
    """As by a web framework that runs the two halves of a dependency in two threads."""
    scope = session_scope("a")
    elsewhere = contextvars.copy_context()
    elsewhere.run(scope.__enter__)
    scope.__exit__(None, None, None)
    assert current_session_id() is None
    assert elsewhere.run(current_session_id) == "a"


@pytest.mark.anyio
async def test_it_reaches_child_tasks_and_threads_and_no_other_task() -> None:
    """Two concurrent sessions, each looked at after the other was entered."""
    entered = {"a": anyio.Event(), "b": anyio.Event()}
    found = dict[str, list[str | None]]()

    async def below(session_id: str) -> None:
        found[session_id].append(current_session_id())

    async def work(session_id: str, other: str) -> None:
        enter_session(session_id)
        entered[session_id].set()
        await entered[other].wait()
        found[session_id] = [current_session_id(), await anyio.to_thread.run_sync(current_session_id)]
        async with anyio.create_task_group() as children:
            children.start_soon(below, session_id)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, "a", "b")
        tasks.start_soon(work, "b", "a")
    assert found == {"a": ["a"] * 3, "b": ["b"] * 3}
    assert current_session_id() is None


# -- log records


def test_a_record_carries_the_session_also_of_other_loggers(caplog: pytest.LogCaptureFixture) -> None:
    with instrumented(), session_scope("a"):
        logging.getLogger("somebody.elses").warning("within")
    assert logged(caplog, "within") == ["a"]


def test_a_record_outside_a_session_has_none_so_that_formats_hold(caplog: pytest.LogCaptureFixture) -> None:
    line = logging.Formatter(f"%({SESSION_ATTRIBUTE})s: %(message)s")
    with instrumented():
        logger.warning("before")
        with session_scope("a"):
            logger.warning("within")
        logger.warning("after")
    assert [line.format(record) for record in caplog.records] == ["None: before", "a: within", "None: after"]


def test_the_scope_alone_suffices_and_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """A script without a worker."""
    with session_scope("a"):
        logger.warning("within")
    logger.warning("after")
    assert logged(caplog, "within") == ["a"]
    assert logged(caplog, "after") == ["absent"]


def test_overlapping_users_share_one_wrapper_and_the_last_takes_it_away() -> None:
    before = logging.getLogRecordFactory()
    first, second = instrumented(), instrumented()
    first.__enter__()
    wrapped = logging.getLogRecordFactory()
    second.__enter__()
    assert logging.getLogRecordFactory() is wrapped is not before
    first.__exit__(None, None, None)
    assert logging.getLogRecordFactory() is wrapped
    second.__exit__(None, None, None)
    assert logging.getLogRecordFactory() is before


def test_a_factory_of_the_application_is_kept_below(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogRecordFactory()

    def mine(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        record.mine = True
        return record

    logging.setLogRecordFactory(mine)
    try:
        with session_scope("a"):
            logger.warning("within")
        assert logging.getLogRecordFactory() is mine
    finally:
        logging.setLogRecordFactory(before)
    assert caplog.records[0].__dict__["mine"] is True
    assert logged(caplog, "within") == ["a"]


def test_a_factory_that_was_set_above_stays_and_is_not_wrapped_again(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogRecordFactory()
    with instrumented():
        ours = logging.getLogRecordFactory()

        def above(*args: Any, **kwargs: Any) -> logging.LogRecord:
            return ours(*args, **kwargs)

        logging.setLogRecordFactory(above)
    try:
        assert logging.getLogRecordFactory() is above
        with session_scope("a"):
            assert logging.getLogRecordFactory() is above
            logger.warning("within")
        assert logged(caplog, "within") == ["a"]
    finally:
        logging.setLogRecordFactory(before)


def test_a_record_of_another_process_keeps_its_session() -> None:
    """As a socket handler sends it: made again from its attributes."""
    with session_scope("here"):
        assert logging.makeLogRecord({SESSION_ATTRIBUTE: "there"}).__dict__[SESSION_ATTRIBUTE] == "there"


# -- spans


def test_a_span_carries_the_session_and_its_children_too(spans: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer("tests")
    with session_scope("a"), tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
        pass
    with tracer.start_as_current_span("after"):
        pass
    assert {span.name: session_of(span) for span in spans.get_finished_spans()} == {
        "outer": "a",
        "inner": "a",
        "after": None,
    }


def test_a_provider_gets_one_processor_however_often_it_is_asked(spans: InMemorySpanExporter) -> None:
    """It is a working member of the provider's chain."""
    for _ in range(3):
        with session_scope("a"), instrumented():
            pass
    provider = trace.get_tracer_provider()
    processors = provider._active_span_processor._span_processors  # type: ignore[attr-defined]
    assert [type(one).__name__ for one in processors].count("_SpanMarker") == 1
    assert provider.force_flush()  # type: ignore[attr-defined]


def test_without_opentelemetry_only_the_logs_carry_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with session_scope("a"):
        logger.warning("within")
    assert logged(caplog, "within") == ["a"]
