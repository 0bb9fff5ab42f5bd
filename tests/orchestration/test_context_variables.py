"""Context variables of the code: each execution has its own, which begin the same in memory and in a replay."""

from __future__ import annotations

import decimal
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, ContextVar
from typing import Any

import pytest
from opentelemetry import context as spans
from pydantic import BaseModel, field_validator

from affinity import OrchestrationContext
from affinity.orchestration import events as ev
from affinity.orchestration.engine import Execution
from affinity.telemetry import current_session_id

from .harness import Live, define

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")

Seen = list[tuple[str, int, object]]


def read() -> tuple[str, int, object]:
    """What code can see of others: a variable, one that Python keeps, and one of a library."""
    return TENANT.get(), decimal.getcontext().prec, spans.get_value("span")


NOTHING = ("nobody", decimal.DefaultContext.prec, None)


def set_all() -> None:
    """Set each of them, and leave it set."""
    TENANT.set("ann")
    decimal.getcontext().prec = 3
    spans.attach(spans.set_value("span", "s"))


@contextmanager
def token() -> Any:
    """A block that sets a variable and resets it."""
    set_token = TENANT.set("ann")
    try:
        yield
    finally:
        TENANT.reset(set_token)


@contextmanager
def span() -> Any:
    """A block as OpenTelemetry has it; it logs an error, and raises none, when its token is of another context."""
    attached = spans.attach(spans.set_value("span", "s"))
    try:
        yield
    finally:
        spans.detach(attached)


class Sets(BaseModel):
    """A type whose validation is code of the application too."""

    n: int

    @field_validator("n")
    @classmethod
    def set_variables(cls, n: int) -> int:
        set_all()
        return n


async def in_main(ctx: OrchestrationContext, act: Callable[[], Awaitable[Any]]) -> None:
    await act()


async def in_branch(ctx: OrchestrationContext, act: Callable[[], Awaitable[Any]]) -> None:
    async def branch() -> None:
        await act()

    await ctx.gather(branch(), ctx.schedule_timer(0))


PLACES = [in_main, in_branch]


async def sets_in_step(ctx: OrchestrationContext) -> None:
    set_all()
    await ctx.schedule_wait("go")


async def sets_in_branch(ctx: OrchestrationContext) -> None:
    async def branch() -> None:
        set_all()
        await ctx.schedule_wait("go")

    await ctx.select(branch(), ctx.schedule_timer(5))


async def sets_in_generator(ctx: OrchestrationContext) -> None:
    async def ticks() -> Any:
        set_all()
        while True:
            yield await ctx.schedule_wait("go")

    async for _ in ticks():
        return


async def sets_when_it_is_closed(ctx: OrchestrationContext) -> None:
    try:
        await ctx.schedule_wait("go")
    finally:
        set_all()


async def sets_in_validation(ctx: OrchestrationContext) -> None:
    await ctx.schedule_wait("go", Sets)


async def sets_in_input(ctx: OrchestrationContext, sets: Sets = Sets.model_construct(n=1)) -> Sets:  # noqa: B008
    await ctx.schedule_wait("go")
    return sets


SETTERS = [
    sets_in_step,
    sets_in_branch,
    sets_in_generator,
    sets_when_it_is_closed,
    sets_in_validation,
    sets_in_input,
]


@pytest.mark.parametrize("sets", SETTERS)
def test_nothing_that_code_sets_reaches_others(sets: Any) -> None:
    seen: Seen = []

    async def reads(ctx: OrchestrationContext) -> None:
        seen.append(read())
        await ctx.schedule_wait("go")
        seen.append(read())

    def play() -> None:
        live, other = Live(sets), Live(reads)
        live.start('{"n":1}' if sets is sets_in_input else "null")
        other.start()
        live.feed(ev.EventRaised("go", '{"n":1}'))
        other.feed(ev.EventRaised("go", "1"))
        live.execution.close()
        other.execution.close()
        seen.append(read())

    Context().run(play)
    assert set(seen) == {NOTHING}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("block", [token, span, lambda: decimal.localcontext(prec=3)], ids=["token", "span", "decimal"])
def test_a_block_may_contain_awaits(
    block: Callable[[], AbstractContextManager[Any]], place: Any, caplog: pytest.LogCaptureFixture
) -> None:
    inside: Seen = []
    after: Seen = []

    async def main(ctx: OrchestrationContext) -> None:
        async def act() -> None:
            with block():
                inside.append(read())
                await ctx.schedule_wait("go")
                inside.append(read())
                await ctx.new_guid()
                inside.append(read())
            after.append(read())

        await place(ctx, act)

    live = Live(main)
    live.start()
    live.feed(ev.EventRaised("go", "1"))
    if place is in_branch:
        (timer,) = [i for i, event in enumerate(live.history, 1) if isinstance(event, ev.TimerCreated)]
        live.feed(ev.TimerFired(timer))
    assert live.outcome == ev.OrchestrationCompleted("null")
    assert len(set(inside)) == 1
    assert inside[0] != NOTHING
    assert set(after) == {NOTHING}
    assert not caplog.records


def test_branches_have_copies_of_the_creators_values() -> None:
    seen: dict[str, list[str]] = {"a": [], "b": [], "main": []}

    async def main(ctx: OrchestrationContext) -> None:
        async def branch(name: str) -> None:
            seen[name].append(TENANT.get())
            with token():
                TENANT.set(name)
                await ctx.schedule_wait(name)
                seen[name].append(TENANT.get())
            seen[name].append(TENANT.get())

        TENANT.set("main")
        await ctx.gather(branch("a"), branch("b"))
        seen["main"].append(TENANT.get())

    live = Live(main)
    live.start()
    for values in seen.values():
        values.clear()
    again = live.replayed()
    live.advance(again, ev.EventRaised("a", "1"), ev.EventRaised("b", "1"))
    assert seen == {"a": ["main", "a", "main"], "b": ["main", "b", "main"], "main": ["main"]}
    live.execution.close()


@pytest.mark.parametrize("from_memory", [True, False])
def test_code_begins_with_the_same_values_in_memory_and_in_replay(from_memory: bool) -> None:
    """Whatever the process has set: another process may have set something else."""
    seen: list[Any] = []

    async def main(ctx: OrchestrationContext) -> None:
        seen.append((*read(), current_session_id()))
        await ctx.schedule_wait("go")
        seen.append((*read(), current_session_id()))

    def play() -> None:
        set_all()
        execution = Execution(define(main), "i", 1, "s-1")
        start = ev.OrchestrationStarted("main", "1.0.0", "null")
        if from_memory:
            execution.advance([start], now=float, new_guid=str)
        else:
            execution.replay([start, ev.EventAwaited("go", None)])
        execution.advance([ev.EventRaised("go", "1")], now=float, new_guid=str)

    Context().run(play)
    assert set(seen) == {(*NOTHING, "s-1")}
