"""`affinity.once` in activities that a worker runs, and in steps of wakes."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import pytest

import affinity
from affinity import RetryPolicy, Wake
from affinity.agent import ModelReply, ModelRequest, ToolCall, ToolContext, run_loop, tool
from affinity.conversation import AgentMessage, UserInterrupt, UserMessage
from affinity.conversation.journal import Step
from affinity.conversation.sections import Section
from affinity.conversation.steps import WakeSteps
from affinity.errors import InvalidOptions, OnceMisuse, OrchestrationFailed
from affinity.testing import Env
from tests.conversation.application import Chat, make
from tests.effects.shops import Receipt, Shop, open_shop

RETRY = RetryPolicy(max_attempts=4, initial_interval=1.0)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return open_shop("sqlite3", f"sqlite:///{tmp_path}/shop.db")


def path_of(shop: Shop) -> str:
    return shop.url.removeprefix("sqlite:///")


def paying(shop: Shop, *, fails_behind: int = 0, is_sync: bool = False) -> affinity.App:
    """An app whose activity pays, and whose first attempts then fail, behind the commit."""
    app = affinity.App("shop")
    attempts: list[int] = []

    @app.activity
    async def pay(ctx: affinity.ActivityContext, reference: str) -> Receipt:
        async with aiosqlite.connect(path_of(shop)) as connection, affinity.once(ctx, connection) as step:
            if not step.is_recorded:
                await connection.execute("INSERT INTO payments (reference) VALUES (?)", [reference])
                step.result = Receipt(number=ctx.attempt)
        attempts.append(ctx.attempt)
        if ctx.attempt <= fails_behind:
            raise ConnectionError("behind the commit")
        receipt: Receipt = step.result
        assert isinstance(receipt, Receipt)
        return receipt

    @app.activity
    def pay_sync(ctx: affinity.ActivityContext, reference: str) -> Receipt:
        with closing(sqlite3.connect(path_of(shop))) as connection:
            with affinity.once(ctx, connection, Receipt) as step:
                if not step.is_recorded:
                    connection.execute("INSERT INTO payments (reference) VALUES (?)", [reference])
                    step.result = Receipt(number=ctx.attempt)
            if ctx.attempt <= fails_behind:
                raise ConnectionError("behind the commit")
            return step.result

    @app.orchestration
    async def order(ctx: affinity.OrchestrationContext, reference: str) -> Receipt:
        return await ctx.schedule_activity(pay_sync if is_sync else pay, reference, retry=RETRY)

    @app.orchestration
    async def twice(ctx: affinity.OrchestrationContext, reference: str) -> list[int]:
        first = await ctx.schedule_activity(pay, reference, retry=RETRY)
        second = await ctx.schedule_activity(pay_sync, reference, retry=RETRY)
        return [first.number, second.number]

    return app


@pytest.mark.parametrize("is_sync", [False, True])
async def test_an_activity_that_fails_behind_its_block_pays_once(shop: Shop, is_sync: bool) -> None:
    """Without a type, the result has the type of the activity's."""
    async with Env(paying(shop, fails_behind=2, is_sync=is_sync)) as env:
        run = await env.client.start("order", "a", instance_id="o")
        assert await env.client.wait(run.instance_id) == {"number": 1}
    assert (shop.paid(), shop.rows()) == (["a"], [("", 1, '{"number":1}')])


async def test_each_activity_and_each_instance_pays_for_itself(shop: Shop) -> None:
    """An instance of a former id too, and an activity of the same input."""
    async with Env(paying(shop)) as env:
        for _ in range(2):
            run = await env.client.start("twice", "a", instance_id="o", if_ended="restart")
            assert await env.client.wait(run.instance_id) == [1, 1]
    assert shop.paid() == ["a"] * 4


async def test_a_block_that_cannot_run_once_fails_for_good(shop: Shop) -> None:
    app = affinity.App("shop")
    attempts: list[int] = []

    @app.activity
    async def pay(ctx: affinity.ActivityContext) -> int:
        attempts.append(ctx.attempt)
        with closing(sqlite3.connect(path_of(shop))) as connection:
            for _ in range(2):
                with affinity.once(ctx, connection, int) as step:
                    if not step.is_recorded:
                        step.result = 1
        return step.result

    @app.orchestration
    async def order(ctx: affinity.OrchestrationContext) -> int:
        return await ctx.schedule_activity(pay, retry=RETRY)

    async with Env(app) as env:
        run = await env.client.start(order)
        with pytest.raises(OrchestrationFailed, match="give each block"):
            await env.client.wait(run.instance_id)
    assert attempts == [1]


async def test_a_lock_of_another_transaction_is_waited_for(shop: Shop) -> None:
    """As no failure: the activity has no retry policy."""
    app = affinity.App("shop")
    attempts: list[int] = []

    @app.activity
    async def pay(ctx: affinity.ActivityContext) -> int:
        attempts.append(ctx.attempt)
        with closing(sqlite3.connect(path_of(shop), timeout=0)) as connection:
            with affinity.once(ctx, connection, int) as step:
                if not step.is_recorded:
                    step.result = 7
            return step.result

    @app.orchestration
    async def order(ctx: affinity.OrchestrationContext) -> int:
        return await ctx.schedule_activity(pay)

    async with Env(app) as env:
        with shop.plain() as run_sql:
            run_sql("BEGIN IMMEDIATE")
            run = await env.client.start(order)
            while len(attempts) < 2:
                await env.advance(1.0)
                await anyio.sleep(0.01)
            run_sql("ROLLBACK")
        assert await env.client.wait(run.instance_id) == 7
    assert set(attempts) == {1}


async def test_a_step_has_its_effect_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its result is lost between the two commits; also of a function that is not async, in its thread."""
    lost: list[str] = []
    add_done = WakeSteps._add_done

    async def lose(self: WakeSteps, step: Step, before: bytes | None) -> None:
        if step.key not in lost:
            lost.append(step.key)
            raise ConnectionError("the process ends here")
        await add_done(self, step, before)

    monkeypatch.setattr(WakeSteps, "_add_done", lose)
    numbers: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        def insert(connection: sqlite3.Connection, reference: str) -> int:
            connection.execute("INSERT INTO payments (reference) VALUES (?)", [reference])
            return wake.attempt

        async def insert_async(connection: aiosqlite.Connection, reference: str) -> int:
            await connection.execute("INSERT INTO payments (reference) VALUES (?)", [reference])
            return wake.attempt

        async with aiosqlite.connect(path_of(shop)) as connection:
            numbers.append(await wake.step("pay", insert_async, connection, "a", once=connection))

        async def insert_here(file: sqlite3.Connection, reference: str) -> int:
            return insert(file, reference)

        with closing(sqlite3.connect(path_of(shop), check_same_thread=False)) as file:
            numbers.append(await wake.step("pay", insert, file, "b", once=file))
            numbers.append(await wake.step("pay", insert_here, file, "c", key="c", once=file))
        wake.append(AgentMessage("paid"))

    chats = make(handler, retry=RETRY)
    app = affinity.App("chats")
    app.include(chats)
    async with Env(app) as env:
        talk = env.client.conversation(chats, "c")
        assert (await talk.ask(UserMessage("pay"))).text == "paid"
        assert (shop.paid(), len(lost)) == (["a", "b", "c"], 3)
        assert numbers[-3:] == [1, 2, 3]  # of the attempts that have paid
        assert (await talk.ask(UserMessage("pay"))).text == "paid"  # another wake pays anew
    assert shop.paid() == ["a", "a", "b", "b", "c", "c"]


async def test_a_step_of_an_interrupted_wake_has_its_effect_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next wake has the inputs of the one that was interrupted before it knew that it had paid."""
    add_done, has_paid = WakeSteps._add_done, anyio.Event()

    async def hang(self: WakeSteps, step: Step, before: bytes | None) -> None:
        if not has_paid.is_set():
            has_paid.set()
            await anyio.sleep_forever()
        await add_done(self, step, before)

    monkeypatch.setattr(WakeSteps, "_add_done", hang)

    async def handler(wake: Wake, chat: Chat) -> None:
        async def insert(connection: aiosqlite.Connection, reference: str) -> str:
            await connection.execute("INSERT INTO payments (reference) VALUES (?)", [reference])
            return wake.id

        async with aiosqlite.connect(path_of(shop)) as connection:
            paid = await wake.step("pay", insert, connection, "a", once=connection)
        wake.append(AgentMessage("by this wake" if paid == wake.id else "by an earlier wake"))

    chats = make(handler, retry=RETRY)
    app = affinity.App("chats")
    app.include(chats)
    async with Env(app) as env:
        talk = env.client.conversation(chats, "c")
        await talk.send(UserMessage("pay"))
        with anyio.fail_after(30):
            await has_paid.wait()
            reply = await talk.ask(UserInterrupt("stop", cancel=True))
        assert reply.text == "by an earlier wake"
    assert shop.paid() == ["a"]


async def test_options_of_a_step_that_contradict_each_other_are_refused(shop: Shop) -> None:
    errors: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        async with aiosqlite.connect(path_of(shop)) as connection:
            for options in ({"once": connection, "repeat": "never"}, {"once": connection}):
                try:
                    await wake.step("pay", len, "abc", **options)
                except InvalidOptions as error:
                    errors.append(str(error))
            try:
                affinity.once(wake, connection)  # type: ignore[call-overload]
            except OnceMisuse as error:
                errors.append(str(error))
        wake.append(AgentMessage("refused"))

    chats = make(handler, retry=RETRY)
    app = affinity.App("chats")
    app.include(chats)
    async with Env(app) as env:
        assert (await env.client.conversation(chats, "c").ask(UserMessage("pay"))).text == "refused"
    assert [text.partition(":")[0] for text in errors] == [
        "once=… and repeat='never'",
        "once=Connection, and the function of the step is not async",
        "once takes the context of an activity or of a tool, not Wake",
    ]
    assert "wake.step(..., once=connection)" in errors[2]


async def test_a_tool_has_its_effect_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the key of the call, though its result is lost behind the commit."""
    made: list[str] = []
    commit = Section.commit

    async def lose(self: Section) -> None:
        if len(made) == 1:
            raise ConnectionError("the process ends here")
        await commit(self)

    monkeypatch.setattr(Section, "commit", lose)

    async def pay(reference: str, call: ToolContext) -> str:
        async with aiosqlite.connect(path_of(shop)) as connection, affinity.once(call, connection, str) as step:
            if not step.is_recorded:
                await connection.execute("INSERT INTO payments (reference) VALUES (?)", [reference])
                step.result = f"paid {reference}"
        made.append(call.idempotency_key)
        result: str = step.result
        return result

    async def ask(request: ModelRequest) -> ModelReply:
        if request.round > 1:
            return ModelReply(content="done")
        return ModelReply(calls=[ToolCall("1", "pay", {"reference": "a"})], finish_reason="tool_calls")

    async def handler(wake: Wake, chat: Chat) -> None:
        await run_loop(wake, model=ask, tools=[tool(pay)])

    chats = make(handler, retry=RETRY)
    app = affinity.App("chats")
    app.include(chats)
    async with Env(app) as env:
        assert (await env.client.conversation(chats, "c").ask(UserMessage("pay"))).text == "done"
    assert shop.paid() == ["a"]
    assert len(made) == 2
    assert len(set(made)) == 1


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_middleware_may_call_the_activity_again(shop: Shop, is_sync: bool) -> None:
    """It finds what it has done, and pays no second time."""
    app = affinity.App("shop")
    calls: list[int] = []

    def pay_once(ctx: affinity.ActivityContext) -> Receipt:
        calls.append(ctx.attempt)
        with closing(sqlite3.connect(path_of(shop))) as connection, affinity.once(ctx, connection, Receipt) as step:
            if not step.is_recorded:
                connection.execute("INSERT INTO payments (reference) VALUES ('a')")
                step.result = Receipt(number=1)
        if len(calls) == 1:
            raise ConnectionError("behind the commit")
        return step.result

    @app.activity
    async def pay(ctx: affinity.ActivityContext) -> Receipt:
        return pay_once(ctx)

    @app.activity
    def pay_sync(ctx: affinity.ActivityContext) -> Receipt:
        return pay_once(ctx)

    @app.middleware
    async def again(call: affinity.MiddlewareCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call_next()
        except ConnectionError:
            return await call_next()

    @app.orchestration
    async def order(ctx: affinity.OrchestrationContext) -> Receipt:
        return await ctx.schedule_activity(pay_sync if is_sync else pay)

    async with Env(app) as env:
        assert await (await env.client.start(order)).wait() == Receipt(number=1)
    assert (shop.paid(), calls) == (["a"], [1, 1])


@pytest.mark.parametrize("kind", ["wake", "step", "tool"])
@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_middleware_may_call_other_code_again(shop: Shop, kind: str, is_sync: bool) -> None:
    """As an activity; what other code of the wake has done is still found out when it is done twice."""
    if kind == "wake" and is_sync:
        pytest.skip("handlers are async")
    calls: list[int] = []
    refused: list[str] = []

    def pay(ctx: affinity.ActivityContext | ToolContext) -> str:
        calls.append(1)
        with closing(sqlite3.connect(path_of(shop))) as connection, affinity.once(ctx, connection, str) as step:
            if not step.is_recorded:
                connection.execute("INSERT INTO payments (reference) VALUES ('a')")
                step.result = "paid"
        if len(calls) == 1:
            raise ConnectionError("behind the commit")
        return str(step.result)

    async def pay_tool(call: ToolContext) -> str:
        return pay(call)

    def pay_tool_sync(call: ToolContext) -> str:
        return pay(call)

    async def ask(request: ModelRequest) -> ModelReply:
        if request.round > 1:
            return ModelReply(content="done")
        return ModelReply(calls=[ToolCall("1", "pay", {})], finish_reason="tool_calls")

    async def handler(wake: Wake, chat: Chat) -> None:
        if kind == "tool":
            await run_loop(wake, model=ask, tools=[tool(name="pay")(pay_tool_sync if is_sync else pay_tool)])
            return

        def pay_step() -> str:
            return pay(wake.context)

        async def pay_step_async() -> str:
            return pay(wake.context)

        if kind == "step":
            await wake.step("pay", pay_step if is_sync else pay_step_async)
            try:  # outside of the step, by the same key
                pay(wake.context)
            except OnceMisuse as error:
                refused.append(str(error))
        else:
            pay(wake.context)
        wake.append(AgentMessage("done"))

    chats = make(handler)
    app = affinity.App("chats")
    app.include(chats)

    @app.middleware
    async def again(call: affinity.MiddlewareCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        if call.kind != kind:
            return await call_next()
        try:
            return await call_next()
        except ConnectionError:
            return await call_next()

    async with Env(app) as env:
        assert (await env.client.conversation(chats, "c").ask(UserMessage("pay"))).text == "done"
    assert shop.paid() == ["a"]
    assert (len(calls), len(refused)) == ((3, 1) if kind == "step" else (2, 0))
