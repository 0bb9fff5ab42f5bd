"""`run_loop(budget=)`: a model that is asked as long as a limit's rate pays for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import affinity
from affinity import Limit, Rate, RetryPolicy, Wake
from affinity.agent import LoopResult, ModelReply, ModelRequest, ToolCall, run_loop
from affinity.conversation import AgentMessage, UserMessage
from affinity.errors import InvalidLimit, InvalidOptions, WakeFailed
from affinity.flow.store.contract import LimitChange, limits_of
from affinity.limits import MAX_PAGE
from tests.conversation.application import Chat, Handler, Stage, make, stage

pytestmark = pytest.mark.anyio

USAGE = {"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40}
TWICE = RetryPolicy(max_attempts=2, initial_interval=0.01)


def tokens(count: int = 100) -> Limit:
    return Limit("tokens", rate=Rate(count, per=3600), keyed=True)


def look() -> str:
    """Look something up."""
    return "found"


@dataclass
class Asked:
    """A model that calls a tool until it has been asked so often in one wake, and a handler that asks it."""

    limit: Limit
    rounds: int = 1
    usage: Mapping[str, int] = field(default_factory=lambda: dict(USAGE))
    options: dict[str, Any] = field(default_factory=dict)
    asked: int = 0
    ends: list[LoopResult] = field(default_factory=list)

    async def model(self, request: ModelRequest) -> ModelReply:
        self.asked += 1
        calls = [ToolCall("", "look", {})] if request.round < self.rounds else []
        return ModelReply(content=None if calls else "answer", calls=calls, usage=self.usage)

    async def handle(self, wake: Wake, chat: Chat) -> None:
        budget = self.limit.key("acme") if self.limit.keyed else self.limit
        self.ends.append(await run_loop(wake, model=self.model, tools=[look], budget=budget, **self.options))


@asynccontextmanager
async def staged(url: str, limit: Limit, handler: Handler, **options: Any) -> AsyncIterator[Stage]:
    """A worker whose app declares the limit."""
    app = affinity.App("limits", limits=[limit])
    async with stage(url, make(handler, **options), app) as on:
        yield on


async def used(on: Stage, key: str = "acme") -> int:
    rows = await limits_of(on.client._provider).list_limit_keys("tokens", most=MAX_PAGE)
    return {row.key: row.used for row in rows}.get(key, 0)


async def ask(on: Stage) -> str:
    return (await on.talk().ask(UserMessage("go"), timeout=30)).text


async def test_a_loop_ends_when_its_budget_cannot_pay(url: str) -> None:
    """Before the call; the answer says so. The last call may exceed the budget. Another owner's budget is untouched."""
    loop = Asked(tokens(100), rounds=9)
    async with staged(url, loop.limit, loop.handle) as on:
        text = await ask(on)
        assert (loop.asked, await used(on), await used(on, "other")) == (3, 120, 0)
        assert text.startswith(
            "The budget 'tokens' of 'acme' is used up: it has 100 units in 3600 s, and 120 are used."
        )
        assert "It has more at 20" in text
        (end,) = loop.ends
        assert (end.stop, end.text, end.rounds) == ("budget", text, 3)
        assert end.usage == {name: 3 * number for name, number in USAGE.items()}
        assert (await ask(on)).startswith("The budget 'tokens'")
        assert loop.asked == 3


async def test_a_budget_is_changed_while_all_runs(url: str) -> None:
    """More is paid at once; a pause stops it, and says so."""
    loop = Asked(tokens(40))
    async with staged(url, loop.limit, loop.handle) as on:
        limits = limits_of(on.client._provider)
        assert await ask(on) == "answer"
        assert (await ask(on)).startswith("The budget")
        rate = Rate(1_000, per=3600)._bound
        assert await limits.change_limits([LimitChange(limit="tokens", rate=rate)]) == [True]
        assert await ask(on) == "answer"
        await limits.change_limits([LimitChange(limit="tokens", key="acme", paused=True)])
        assert await ask(on) == "The budget 'tokens' of 'acme' is paused."
        await limits.change_limits([LimitChange(limit="tokens", key="acme", paused=False, rate=None)])
        assert await ask(on) == "answer"


async def test_an_answer_from_a_recorded_step_is_not_charged_again(url: str) -> None:
    """The handler fails behind the loop, and its next attempt has the model's answer from the step. A model without a
    step is asked again, and charged again.
    """
    loop = Asked(tokens(1_000))
    steps = True

    async def handler(wake: Wake, chat: Chat) -> None:
        async def model(request: ModelRequest) -> ModelReply:
            async def call() -> dict[str, int]:
                return {**(await loop.model(request)).usage}

            return ModelReply(content="answer", usage=await wake.step("ask", call) if steps else await call())

        await run_loop(wake, model=model, budget=loop.limit.key("acme"))
        if wake.attempt == 1:
            raise RuntimeError("after the loop")

    async with staged(url, loop.limit, handler, retry=TWICE) as on:
        assert await ask(on) == "answer"
        assert (loop.asked, await used(on)) == (1, 40)
        steps = False
        assert await ask(on) == "answer"
        assert (loop.asked, await used(on)) == (3, 120)


async def test_rounds_that_are_committed_are_not_charged_again(url: str) -> None:
    """A wake that fails in its second round goes on there."""
    loop = Asked(tokens(1_000), rounds=2)

    async def handler(wake: Wake, chat: Chat) -> None:
        async def model(request: ModelRequest) -> ModelReply:
            if request.round == 2 and wake.attempt == 1:
                raise RuntimeError("no answer")
            return await loop.model(request)

        await run_loop(wake, model=model, tools=[look], budget=loop.limit.key("acme"))

    async with staged(url, loop.limit, handler, retry=TWICE) as on:
        assert await ask(on) == "answer"
        assert (loop.asked, await used(on)) == (2, 80)


async def test_a_cost_is_of_the_application(url: str) -> None:
    """Such as money: here the tokens that a model has written count five times."""
    limit = Limit("tokens", rate=Rate(100, per=60))
    weigh: Callable[[Mapping[str, int]], int] = lambda usage: usage["prompt_tokens"] + 5 * usage["completion_tokens"]  # noqa: E731
    loop = Asked(limit, rounds=9, options={"cost": weigh})
    async with staged(url, limit, loop.handle) as on:
        assert (await ask(on)).startswith("The budget 'tokens' is used up: it has 100 units in 60 s, and 160 are used.")
        assert (loop.asked, await used(on, "")) == (2, 160)


@pytest.mark.parametrize(
    ("usage", "options", "name", "text"),
    [
        ({}, {}, "WakeMisuse", "give ModelReply"),
        ({"seconds": 3}, {}, "WakeMisuse", "give ModelReply"),
        (USAGE, {"cost": lambda usage: None}, "InvalidOptions", "an integer from 0"),
        (USAGE, {"cost": lambda usage: -1}, "InvalidOptions", "an integer from 0"),
        (USAGE, {"cost": lambda usage: usage["none"]}, "KeyError", "none"),
    ],
)
async def test_a_cost_that_cannot_be_had_fails_the_wake(
    sqlite_url: str, usage: dict[str, int], options: dict[str, Any], name: str, text: str
) -> None:
    loop = Asked(tokens(), usage=usage, options=options)
    async with staged(sqlite_url, loop.limit, loop.handle, retry=RetryPolicy(max_attempts=1)) as on:
        with pytest.raises(WakeFailed, match=f"{name}.*{text}"):
            await ask(on)


async def test_what_is_refused_before_the_model_is_asked() -> None:
    wake: Any = None
    for budget in (Limit("model", concurrency=1), Limit("model", keyed=True, concurrency=1).key("acme")):
        with pytest.raises(InvalidLimit, match="it has no rate"):
            await run_loop(wake, model=Asked(tokens()).model, budget=budget)
    with pytest.raises(InvalidLimit, match="a budget is a Limit"):
        await run_loop(wake, model=Asked(tokens()).model, budget=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidLimit, match="has keys"):
        await run_loop(wake, model=Asked(tokens()).model, budget=tokens())
    with pytest.raises(InvalidOptions, match="give budget="):
        await run_loop(wake, model=Asked(tokens()).model, cost=lambda usage: 1)


async def test_a_wake_charges_a_budget_and_reads_it(url: str) -> None:
    limit = tokens(100)

    async def handler(wake: Wake, chat: Chat) -> None:
        mine = limit.key("acme")
        states = []
        for units in (60, 0, 60):
            await wake.consume(mine, units)
            found = await wake.budget(mine)
            states.append((found.used, found.is_open))
        wake.append(AgentMessage(str(states)))

    async with staged(url, limit, handler) as on:
        assert await ask(on) == "[(60, True), (60, True), (120, False)]"
