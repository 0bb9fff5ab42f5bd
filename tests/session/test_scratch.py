"""Scratch: fields that are in memory only, and when they start anew."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field

from affinity import Sessions
from affinity.errors import InvalidOptions, NotSerializable
from affinity.session import JsonCodec, scratch
from tests.session.activities import Host

pytestmark = pytest.mark.anyio


@pytest.fixture
def host() -> Host:
    return Host()


async def test_scratch_lives_in_memory_only(host: Host) -> None:
    class Agent(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        steps: int = 0
        buffer: list[str] = scratch(default_factory=list)
        rng: random.Random = scratch(default_factory=random.Random)

    agents = Sessions(Agent)
    ctx = host.activity()
    async with agents.open(ctx) as agent:
        agent.buffer.append("thinking")
    await host.finish(ctx)
    assert json.loads((await host.stored()).state) == {"steps": 0}
    assert (await host.read(agents)).buffer == ["thinking"]
    await agents.lost("s")
    assert (await host.read(agents, epoch=2)).buffer == []


def test_scratch_without_a_default_is_refused_wherever_it_is() -> None:
    class Inner(BaseModel):
        token: str = Field(exclude=True)

    class Outer(BaseModel):
        parts: list[Inner] = []
        also: int = scratch()

    @dataclass
    class Plain:
        lost: Annotated[int, Field(exclude=True)]

    with pytest.raises(InvalidOptions, match="scratch fields without a default: also, token"):
        Sessions(Outer)
    with pytest.raises(InvalidOptions, match="lost"):
        Sessions(Plain)


# --- fresh scratch ----------------------------------------------------------------------------------------------------


class Draft(BaseModel):
    lines: list[str] = []
    seen: list[int] = scratch(default_factory=list)


async def seen_by_three_activities(host: Host, drafts: Sessions[Draft], epochs: list[int]) -> list[list[int]]:
    found = []
    for number, epoch in enumerate(epochs):
        ctx = host.activity(epoch=epoch)
        async with drafts.open(ctx) as draft:
            draft.lines.append(str(number))
            draft.seen.append(number)
            found.append(list(draft.seen))
        await host.finish(ctx)
    return found


async def test_fresh_scratch_depends_on_no_placement(host: Host) -> None:
    """On one worker, where the copy is warm, it is as on three, where it is not."""
    fresh = Sessions(Draft, kind="draft", fresh_scratch=True)
    assert await seen_by_three_activities(host, fresh, [1, 1, 1]) == [[0], [1], [2]]
    assert (fresh.stats.hydrations, host.database.loads) == (1, 1)
    assert await seen_by_three_activities(host, fresh, [2, 3, 4]) == [[0], [1], [2]]
    warm = Sessions(Draft, kind="draft")
    assert await seen_by_three_activities(host, warm, [5, 5, 5]) == [[0], [0, 1], [0, 1, 2]]
    assert len((await host.read(fresh, epoch=6)).lines) == 9


async def test_scratch_is_fresh_at_each_opening_of_an_activity_but_within_another(host: Host) -> None:
    drafts = Sessions(Draft, kind="draft", fresh_scratch=True)
    ctx = host.activity()
    async with drafts.open(ctx) as outer:
        outer.seen.append(1)
        async with drafts.open(ctx) as inner:
            assert inner is outer
    async with drafts.open(ctx) as again:
        assert again.seen == []
        again.lines.append("kept")
    await host.finish(ctx)
    assert (await host.read(drafts)).lines == ["kept"]


async def test_scratch_is_fresh_after_an_opening_that_failed(host: Host) -> None:
    class FailingOnce(JsonCodec[Draft]):
        fails = False

        def dump(self, state: Draft, /) -> bytes:
            if self.fails:
                self.fails = False
                raise ValueError("not now")
            return super().dump(state)

    codec = FailingOnce(Draft)
    drafts = Sessions(Draft, kind="draft", codec=codec, fresh_scratch=True)
    ctx = host.activity()
    async with drafts.open(ctx) as draft:
        draft.seen.append(1)
    codec.fails = True
    with pytest.raises(NotSerializable):
        async with drafts.open(ctx):
            pass
    async with drafts.open(ctx) as again:
        assert again.seen == []
    await host.finish(ctx)
