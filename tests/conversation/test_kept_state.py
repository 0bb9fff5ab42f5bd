"""The state in the attempts of a wake: each change counts once, wherever an attempt ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, Field

import affinity
from affinity import RetryPolicy, Wake
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.conversation import AgentMessage, ToolResult, UserMessage
from affinity.errors import SessionNotFound, SessionWriteConflict, StepFailed, WakeFailed
from affinity.testing import Env

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.nightly_cases(r"\[postgres(?!-(commits|steps)\])"),  # the suite has what states and journals owe it
]

RETRY = RetryPolicy(max_attempts=10, initial_interval=1.0)


class Line(BaseModel):
    """A part of the state that code holds."""

    count: int = 0
    notes: list[str] = Field(default_factory=list)


class Cart(BaseModel):
    """The state."""

    messages: int = 0
    tools: int = 0
    steps: int = 0
    behind: int = 0
    lines: dict[str, Line] = Field(default_factory=dict)
    order: list[str] = Field(default_factory=list)


class Points:
    """Ends attempts at points that they pass."""

    def __init__(self, *ends: int) -> None:
        self.ends = list(ends)
        """At which point the first attempt ends, the second one, …"""
        self.passed = 0
        self.lost = False
        self.is_lost = False

    def begin(self) -> None:
        """An attempt begins."""
        self.passed, self.is_lost = 0, False

    async def __call__(self, wake: Wake, *, in_tool: bool = False) -> None:
        """``in_tool``: an error does not end the attempt here."""
        self.passed += 1
        if not self.ends or self.passed != self.ends[0] or (in_tool and not self.lost):
            return
        self.ends.pop(0)
        if not self.lost:
            raise ConnectionError("busy")
        self.is_lost = True  # as if the process had died: nothing is committed from here on

        async def refuse(*_: object) -> None:
            raise lost(wake)

        object.__setattr__(wake.context, "_commit_part", refuse)

    def end(self, wake: Wake) -> None:
        """The handler has come to its end."""
        if self.is_lost:
            raise lost(wake)


def lost(wake: Wake) -> SessionWriteConflict:
    return SessionWriteConflict(wake.conversation_id, None, None, "the lease is lost")


Body = Callable[[Wake, Cart, Points], Awaitable[None]]


async def commits(wake: Wake, cart: Cart, point: Points) -> None:
    for number in range(3):
        cart.messages += 1
        cart.order.append(f"part {number}")
        wake.append(AgentMessage(f"part {cart.messages}"))
        await point(wake)
        await wake.commit()
        await point(wake)
    cart.behind += 1


async def commits_of_the_state_alone(wake: Wake, cart: Cart, point: Points) -> None:
    for _ in range(3):
        cart.messages += 1
        await wake.commit()
        await point(wake)


async def attempts_that_differ(wake: Wake, cart: Cart, point: Points) -> None:
    """The text, as that of a model, is another one in each attempt."""
    for number in range(2):
        cart.messages += 1
        wake.append(AgentMessage(f"{number} in attempt {wake.attempt}"))
        await wake.commit()
        await point(wake)
    cart.behind += 1


async def held_parts(wake: Wake, cart: Cart, point: Points) -> None:
    """The handler holds a part of the state."""
    line = cart.lines.setdefault("tea", Line())
    line.count += 1
    await wake.commit()
    await point(wake)
    await wake.step("note", line.notes.append, "by a step")
    await point(wake)
    line.notes.append("behind")
    await wake.commit()
    await point(wake)
    line.count += 10


async def steps(wake: Wake, cart: Cart, point: Points) -> None:
    async def change(number: int) -> int:
        cart.steps += number
        return cart.steps

    def in_a_thread(text: str) -> None:
        cart.order.append(text)

    cart.messages += 1
    for number in (1, 10):
        assert await wake.step("change", change, number) == cart.steps
        cart.behind += 1
        await point(wake)
    await wake.step("thread", in_a_thread, "tea")
    await point(wake)


async def steps_at_the_same_time(wake: Wake, cart: Cart, point: Points) -> None:
    """Each changes the state at its end."""

    async def change(number: int) -> None:
        await anyio.sleep(0.01 * (3 - number))
        cart.steps += number

    async def run(number: int) -> None:
        await wake.step("change", change, number, key=str(number))

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(run, number)
    await point(wake)
    cart.behind += 1
    await wake.commit()
    await point(wake)


async def a_step_that_fails(wake: Wake, cart: Cart, point: Points) -> None:
    """It is not begun a second time: its change stays with its error."""

    async def fail() -> None:
        cart.steps += 1
        raise ValueError("declined")

    try:
        await wake.step("pay", fail, repeat="never")
    except (ValueError, StepFailed):
        cart.order.append("declined")
    await point(wake)
    cart.behind += 1
    await wake.commit()
    await point(wake)


def model_of(rounds: int) -> Any:
    async def model(request: ModelRequest) -> ModelReply:
        done = sum(isinstance(event, ToolResult) for event in request.events)
        if done >= 2 * rounds:
            return ModelReply(content=f"done {done}")
        return ModelReply(calls=[ToolCall(f"c{done + n}", name, {"n": n}) for n, name in enumerate(("add", "note"))])

    return model


def tools_of(wake: Wake, cart: Cart, point: Points) -> list[Any]:
    @tool
    async def add(n: int) -> str:
        await point(wake, in_tool=True)
        cart.tools += 1
        return "ok"

    @tool
    async def note(n: int) -> str:
        await anyio.sleep(0)
        cart.order.append("by a tool")
        return "ok"

    return [add, note]


async def a_loop(wake: Wake, cart: Cart, point: Points) -> None:
    cart.messages += 1
    wake.append(AgentMessage(f"question {cart.messages}"))
    model = model_of(2)

    async def asked(request: ModelRequest) -> ModelReply:
        await point(wake)
        reply: ModelReply = await model(request)
        return reply

    await run_loop(wake, model=asked, tools=tools_of(wake, cart, point))
    cart.behind += 1
    await point(wake)
    await wake.commit()
    await point(wake)
    cart.behind += 1


async def a_tool_that_commits(wake: Wake, cart: Cart, point: Points) -> None:
    @tool
    async def add(n: int) -> str:
        cart.tools += 1
        await wake.commit()
        await point(wake, in_tool=True)
        return "ok"

    @tool
    def note(n: int) -> str:
        return "ok"

    cart.messages += 1
    await wake.commit()
    await run_loop(wake, model=model_of(1), tools=[add, note])
    await point(wake)


async def items_that_are_left_out(wake: Wake, cart: Cart, point: Points) -> None:
    """The handler leaves out what earlier attempts have committed."""
    done = {entry.event.text for entry in wake.committed if isinstance(entry.event, AgentMessage)}
    for item in ("tea", "milk", "bread"):
        if item in done:
            continue
        cart.messages += 1
        cart.order.append(item)
        wake.append(AgentMessage(item))
        await wake.commit()
        await point(wake)


async def a_section(wake: Wake, cart: Cart, point: Points) -> None:
    """A loop of the application, which goes on where an earlier attempt has stopped."""
    cart.messages += 1
    section = wake.section("items")
    for number in range(len(section.committed), 3):
        cart.tools += 1
        wake.append(AgentMessage(f"item {number}"))
        await point(wake)
        await section.commit()
    await point(wake)
    cart.behind += 1


BODIES: list[Body] = [
    commits,
    commits_of_the_state_alone,
    attempts_that_differ,
    held_parts,
    steps,
    steps_at_the_same_time,
    a_step_that_fails,
    a_loop,
    a_tool_that_commits,
    items_that_are_left_out,
    a_section,
]


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> str | None:
    """Of an `Env`; None: SQLite."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgres_shared")


async def state_of(env: Env, talk: affinity.ConversationHandle) -> Cart:
    record = await env.client.session_manager.show(talk.conversation_id)
    return Cart.model_validate_json(record.state)


@pytest.mark.slow_cases(r"\[(?!sqlite-steps)")
@pytest.mark.slow_cases("postgres")
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
async def test_each_change_counts_once(body: Body, server: str | None) -> None:
    """The first attempt ends at each point, by an error or with its process; a second one at each point too."""
    points = Points()
    carts = affinity.Conversations(Cart, kind="carts")

    @carts.on_wake(retry=RETRY)
    async def respond(wake: Wake, cart: Cart) -> None:
        points.begin()
        await body(wake, cart, points)
        points.end(wake)

    app = affinity.App("carts")
    app.include(carts)
    async with Env(app, url=server) as env:

        async def play(name: str) -> Cart:
            talk = env.client.conversation(carts, name)
            await talk.ask(UserMessage("hi"))
            assert (await env.client.conversation(carts, name).history(pending=True)) == []
            return await state_of(env, talk)

        expected = await play("undisturbed")
        count = points.passed
        assert count
        for is_lost in (False, True):
            for first in range(1, count + 1):
                for second in (0, *range(1, count + 1, 1 + count // 4)):
                    points = Points(first, *[second][:second])
                    points.lost = is_lost
                    name = f"{first}, {second}, {'lost' if is_lost else 'raised'}"
                    assert await play(name) == expected, name


async def two_steps(wake: Wake, early: Callable[[], Awaitable[None]], late: Callable[[], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wake.step, "early", early)
        tasks.start_soon(wake.step, "late", late)


async def two_tools(wake: Wake, early: Callable[[], Awaitable[None]], late: Callable[[], Awaitable[None]]) -> None:
    async def model(request: ModelRequest) -> ModelReply:
        calls = [ToolCall(name, name, {}) for name in ("early", "late")]
        is_done = any(isinstance(event, ToolResult) for event in request.events)
        return ModelReply(content="done") if is_done else ModelReply(calls=calls)

    await run_loop(wake, model=model, tools=[tool(name="early")(early), tool(name="late")(late)])


@pytest.mark.parametrize(("run", "parts"), [(two_steps, 1), (two_tools, 2)])  # one of these has the model's answer
@pytest.mark.parametrize("turns", range(4, 10))
async def test_a_commit_has_the_result_of_code_whose_changes_it_has(
    turns: int, run: Any, parts: int, server: str | None
) -> None:
    """One ends some turns of the event loop before or behind the other, and the process ends after so many parts."""
    carts = affinity.Conversations(Cart, kind="carts")

    @carts.on_wake(retry=RETRY)
    async def respond(wake: Wake, cart: Cart) -> None:
        async def early() -> None:
            for _ in range(turns):
                await anyio.sleep(0)
            cart.steps += 1

        async def late() -> None:
            for _ in range(6):
                await anyio.sleep(0)
            cart.tools += 1

        if wake.attempt == 1:
            commit, commits = wake.context._commit_part, 0
            assert commit is not None

            async def commit_once(*arguments: Any) -> None:
                nonlocal commits
                commits += 1
                if commits > parts:
                    raise lost(wake)
                await commit(*arguments)

            object.__setattr__(wake.context, "_commit_part", commit_once)
        await run(wake, early, late)
        if wake.attempt == 1:
            raise lost(wake)

    app = affinity.App("carts")
    app.include(carts)
    async with Env(app, url=server) as env:
        talk = env.client.conversation(carts, "c")
        await talk.ask(UserMessage("hi"))
        assert await state_of(env, talk) == Cart(steps=1, tools=1)


# -- wakes that end without success, and forks


class Talk:
    """A conversation whose model is down while `is_down`; its tool changes the state."""

    def __init__(self) -> None:
        self.is_down = True
        self.entered = anyio.Event()
        self.carts = affinity.Conversations(Cart, kind="carts")
        self.carts.on_wake(retry=RetryPolicy(max_attempts=1))(self._respond)
        self.app = affinity.App("carts")
        self.app.include(self.carts)

    async def _respond(self, wake: Wake, cart: Cart) -> None:
        cart.messages += sum(isinstance(event, UserMessage) for event in wake.events)
        if wake.interrupt is not None:
            cart.order.append("interrupted")
            return

        @tool
        async def add(n: int) -> str:
            cart.tools += 1
            return "ok"

        async def model(request: ModelRequest) -> ModelReply:
            if not any(isinstance(event, ToolResult) for event in request.events):
                return ModelReply(calls=[ToolCall("c", "add", {"n": 1})])
            self.entered.set()
            if self.is_down:
                raise ConnectionError("the model is down")
            return ModelReply(content="done")

        await run_loop(wake, model=model, tools=[add])
        cart.behind += 1


async def test_a_wake_that_has_failed_counts_once_when_it_is_resumed(server: str | None) -> None:
    """Meanwhile the record has the state from before the wake."""
    talk = Talk()
    async with Env(talk.app, url=server) as env:
        conversation = env.client.conversation(talk.carts, "c")
        with pytest.raises(WakeFailed):
            await conversation.ask(UserMessage("hi"))
        with pytest.raises(SessionNotFound):
            await state_of(env, conversation)
        talk.is_down = False
        await conversation.resume()
        await env.run_until_idle()
        assert await state_of(env, conversation) == Cart(messages=1, tools=1, behind=1)


async def test_what_a_wake_has_committed_stays_when_its_inputs_are_set_aside(server: str | None) -> None:
    """The entries, and the state of the last commit."""
    talk = Talk()
    async with Env(talk.app, url=server) as env:
        conversation = env.client.conversation(talk.carts, "c")
        with pytest.raises(WakeFailed):
            await conversation.ask(UserMessage("hi"))
        talk.is_down = False
        await conversation.ask(UserMessage("again"))
        assert [letter.event for letter in await conversation.dead_letters()] == [UserMessage("hi")]
        assert await state_of(env, conversation) == Cart(messages=2, tools=1, behind=1)


async def test_a_fork_of_a_wake_that_has_not_ended_counts_once(server: str | None) -> None:
    """Source and fork go on with the tool's result, and with what the tool has changed."""
    talk = Talk()
    async with Env(talk.app, url=server) as env:
        conversation = env.client.conversation(talk.carts, "c")
        with pytest.raises(WakeFailed):
            await conversation.ask(UserMessage("hi"))
        talk.is_down = False
        fork = await conversation.fork("fork")
        await env.run_until_idle()
        assert await state_of(env, fork) == Cart(messages=1, tools=1, behind=1)
        await conversation.resume()
        await env.run_until_idle()
        assert await state_of(env, conversation) == Cart(messages=1, tools=1, behind=1)


async def test_what_a_tool_has_changed_stays_when_its_wake_is_cancelled(server: str | None) -> None:
    """The next wake counts the message, and runs no tool."""
    talk = Talk()
    waits = anyio.Event()

    async def respond(wake: Wake, cart: Cart) -> None:
        if wake.interrupt is None:
            await talk._respond(wake, cart)  # the model answers
            await wake.section("wait").commit()
            waits.set()
            await anyio.sleep_forever()
        await talk._respond(wake, cart)

    talk.is_down = False
    carts, app = affinity.Conversations(Cart, kind="carts"), affinity.App("carts")
    carts.on_wake()(respond)
    app.include(carts)
    async with Env(app, url=server) as env:
        conversation = env.client.conversation(carts, "c")
        await conversation.send(UserMessage("hi"))
        with anyio.fail_after(30):
            await waits.wait()
        await conversation.interrupt(cancel_running=True)
        await env.run_until_idle()
        assert await state_of(env, conversation) == Cart(messages=1, tools=1, behind=1, order=["interrupted"])


# -- what an attempt reads


async def test_an_attempt_reads_what_the_first_one_has_read(server: str | None) -> None:
    """And what was committed since: inputs, revisits, refusals, history and transcript; no trace, and nothing that has
    come between the attempts.
    """
    seen: list[dict[str, Any]] = []
    requests: list[list[str]] = []

    async def model(request: ModelRequest) -> ModelReply:
        requests.append([event.kind for event in request.events])
        if not any(isinstance(event, ToolResult) for event in request.events):
            return ModelReply(calls=[ToolCall("c", "add", {"n": 1})])
        if len(seen) == 1:
            await env.client.conversation(carts, "c").send(UserMessage("later"))
        if len(seen) < 3:
            raise ConnectionError("the model is down")
        return ModelReply(content="done")

    @tool
    async def add(n: int) -> str:
        return "ok"

    carts = affinity.Conversations(Cart, kind="carts")

    @carts.on_wake(retry=RETRY)
    async def respond(wake: Wake, cart: Cart) -> None:
        if not cart.messages:
            cart.messages = 1
            wake.revisit(1, key="first")
            wake.revisit(1.5, key="second")
            return
        seen.append(
            {
                "pending": [(entry.seq, entry.kind) for entry in wake.pending],
                "due": [revisit.key for revisit in wake.due],
                "last": [entry.kind for entry in await wake.history(last=1)],
                "tail": [entry.kind for entry in await wake.history(after=1) if entry.wake_id == wake.id],
            }
        )
        await run_loop(wake, model=model, tools=[add])

    app = affinity.App("carts")
    app.include(carts)
    async with Env(app, url=server) as env:
        conversation = env.client.conversation(carts, "c")
        await conversation.ask(UserMessage("hi"))
        await env.run_until_idle()
    first, second, third, *_ = seen
    assert first["due"] == second["due"] == third["due"] == ["first"]
    assert first["pending"] == second["pending"] == third["pending"] == []
    committed = ["agent.revisit_due", "agent.tool_use", "agent.tool_result"]
    assert [each["tail"] for each in (first, second, third)] == [[], committed, committed]
    assert [each["last"] for each in (second, third)] == [["user.message"]] * 2  # it has come since
    assert [each["due"] for each in seen[3:]] == [["second"]]
    assert not [kind for each in requests for kind in each if kind.startswith(("span.", "conversation."))]
    assert requests[1] == requests[2] == requests[3] == ["user.message", *committed]
