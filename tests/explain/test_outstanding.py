"""The waits of an execution, from its history, are the waits that its code has."""

from __future__ import annotations

from typing import Any

import pytest

from affinity import OrchestrationContext
from affinity.explain.outstanding import Outstanding
from affinity.orchestration import events as ev
from affinity.orchestration.wire import encode_event
from tests.orchestration.harness import Live


async def one_after_the_other(ctx: OrchestrationContext) -> None:
    await ctx.schedule_wait("e", int)
    await ctx.schedule_wait("e", str)
    await ctx.schedule_wait("e", int)


async def at_once(ctx: OrchestrationContext) -> None:
    await ctx.gather(ctx.schedule_wait("e", int), ctx.schedule_wait("e", str), ctx.schedule_wait("e", int))


@pytest.mark.parametrize("main", [one_after_the_other, at_once])
@pytest.mark.parametrize("buffered", [0, 1, 2, 3])
@pytest.mark.parametrize("texts", [['"x"', "1"], ["1", '"x"'], ["[]", '"x"', "1"], ['"x"', '"y"', "1"], ["[]", "1"]])
def test_waits_whose_events_were_refused(main: Any, buffered: int, texts: list[str]) -> None:
    live = Live(main)
    raised = [ev.EventRaised("e", text) for text in texts]
    for event in raised[:buffered]:
        live.feed(event)
    live.start()
    for event in raised[buffered:]:
        live.feed(event)
    found = Outstanding()
    found.read(map(encode_event, live.history))
    waiting = live.execution._scheduler.outstanding
    assert sorted(found.events) == sorted(waiting)
    live.execution.close()
