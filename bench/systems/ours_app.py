"""What our workers run."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

import anyio
from pydantic import BaseModel

from affinity import ActivityContext, App, Conversations, OrchestrationContext, Sessions, Wake
from affinity.conversation import AgentMessage, JournalEvent, UserMessage
from bench.chats import Chat
from bench.tracing import start_if_enabled
from bench.work import STATE, Stamp, answer_to, stamp

start_if_enabled()


class Step(BaseModel):
    """One turn."""

    turn: int
    pause: float = 0.0


class Route(BaseModel):
    """Turns on sessions, which take their turns."""

    turns: int
    pause: float = 0.0
    sessions: list[str] = []  # empty: the instance's own
    ordered: bool = False
    tag: str | None = None


class Flood(BaseModel):
    """Activities that block, on one session."""

    session: str
    items: int
    ordered: bool = False


class Fan(BaseModel):
    """Activities without a session, all started together."""

    width: int
    cpu: float  # seconds of a processor that each uses


class Burn(BaseModel):
    """One of them."""

    number: int
    cpu: float


app = App("bench")


@app.activity
async def step(context: ActivityContext, this: Step) -> Stamp:
    """A turn."""
    made = stamp(this.turn)
    if this.pause:
        await anyio.sleep(this.pause)
    return made


@app.orchestration
async def walk(context: OrchestrationContext, route: Route) -> list[Stamp]:
    """Turns, one after the other."""
    sessions = route.sessions or [context.instance_id]
    made = []
    for turn in range(route.turns + 1):
        work = context.schedule_activity(step, Step(turn=turn, pause=route.pause))
        work = work.on_session(sessions[turn % len(sessions)], ordered=route.ordered)
        made.append(await (work if route.tag is None else work.with_tag(route.tag)))
    return made


class Stay(BaseModel):
    """Turns on the instance's own session, until a file is there."""

    pause: float
    stop: str


class StayStep(Step):
    """One of them."""

    stop: str


@app.activity
async def stay_step(context: ActivityContext, this: StayStep) -> tuple[int, int, float, bool]:
    """A turn; the last element says whether another one follows."""
    made = stamp(this.turn)
    await anyio.sleep(this.pause)
    return (*made, not await anyio.Path(this.stop).exists())


@app.orchestration
async def stay(context: OrchestrationContext, order: Stay) -> list[tuple[int, int, float, bool]]:
    """Turns, one after the other, until it is stopped."""
    ran: list[tuple[int, int, float, bool]] = []
    while not ran or ran[-1][3]:
        this = StayStep(turn=len(ran), pause=order.pause, stop=order.stop)
        ran.append(await context.schedule_activity(stay_step, this).on_session(context.instance_id))
    return ran


@app.activity
def burn(context: ActivityContext, this: Burn) -> Stamp:
    """Keeps a core busy, on a thread of the worker."""
    until = time.thread_time() + this.cpu
    while time.thread_time() < until:
        pass
    return stamp(this.number)


@app.orchestration
async def fan_out(context: OrchestrationContext, fan: Fan) -> list[Stamp]:
    """Many activities, started together."""
    return await context.gather(
        *(context.schedule_activity(burn, Burn(number=number, cpu=fan.cpu)) for number in range(fan.width))
    )


@app.orchestration
async def waiting(context: OrchestrationContext) -> bool:
    """Waits for an event."""
    await context.schedule_wait("go", Any)
    return True


IN_MEMORY = 1_200
"""States that a worker has in memory: the states of the largest measurement, and of its warm-up."""

stateful = App("bench-stateful")
"""Its turns commit the state of their session."""

chats = Sessions[Chat](Chat, kind="chat", max_sessions=IN_MEMORY)
stateful.include(chats)


class Said(Step):
    """One turn of a chat."""

    size: int  # bytes of its state; 0: it has none


class ChatRoute(Route):
    """Turns of chats."""

    size: int = 0


@stateful.activity
async def go_on(context: ActivityContext, this: Said) -> Stamp:
    """A turn that changes the state, if there is one."""
    made = stamp(this.turn)
    if this.size and context.session_id is not None:
        async with chats.open(context) as chat:
            chat.go_on(context.session_id, this.size)
    return made


@stateful.orchestration(name="walk")
async def walk_chat(context: OrchestrationContext, route: ChatRoute) -> list[Stamp]:
    """Turns, one after the other."""
    session = next(iter(route.sessions), context.instance_id)
    return [
        await context.schedule_activity(go_on, Said(turn=turn, size=route.size)).on_session(session)
        for turn in range(route.turns + 1)
    ]


talking = App("bench-talking")
"""Its conversations answer, and stream what time it is; beside them are walks."""


class Talker(BaseModel):
    """State of a conversation."""

    answers: int = 0


class Emit(JournalEvent):
    """Requests a stream of tokens, each of which is the time at which it was made, and then for an entry with the time
    at which the wake ended.
    """

    tokens: int
    pause: float
    kind: Literal["user.emit"] = "user.emit"


class Lengthen(JournalEvent):
    """Requests so many entries."""

    entries: int
    kind: Literal["user.lengthen"] = "user.lengthen"


class DoSteps(JournalEvent):
    """Requests steps, one after the other, which do nothing; the answer is their number, and the seconds of all."""

    steps: int
    kind: Literal["user.do_steps"] = "user.do_steps"


async def no_work(number: int) -> int:
    """A step that costs nothing itself."""
    return number


talks = Conversations[Talker](Talker, kind="talk", events=[Emit, Lengthen, DoSteps], max_sessions=IN_MEMORY)


@talks.on_wake
async def respond(wake: Wake, talker: Talker) -> None:
    """Answers each question; of two in one wake, each."""
    for event in wake.events:
        if isinstance(event, Emit):
            for _ in range(event.tokens):
                wake.stream(time.monotonic())
                await asyncio.sleep(event.pause)  # the cheapest there is: what makes the tokens is not measured
            wake.append(AgentMessage(str(time.monotonic())))
        elif isinstance(event, Lengthen):
            for _ in range(event.entries):
                wake.append(AgentMessage("x" * 100))
        elif isinstance(event, DoSteps):
            began = time.monotonic()
            done = [await wake.step("work", no_work, number) for number in range(event.steps)]
            wake.append(AgentMessage(f"{len(set(done))} {time.monotonic() - began}"))
        elif isinstance(event, UserMessage):
            wake.append(AgentMessage(f"answer to {event.text}, after {talker.answers}"))
            talker.answers += 1


talking.include(talks)
talking.include(app)


class Asked(BaseModel):
    """State of a chat: as much as its peers keep."""

    answers: int = 0
    filler: str = ""


asking = App("bench-asking")
"""Its conversations answer: see `bench.scenarios.ask`."""

asked = Conversations[Asked](Asked, kind="asked", max_sessions=IN_MEMORY)


@asked.on_wake
async def answer(wake: Wake, chat: Asked) -> None:
    """Answers each question, and writes its state."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            wake.append(AgentMessage(answer_to(event.text, chat.answers)))
            chat.filler = f"{chat.answers}{STATE}"
            chat.answers += 1


asking.include(asked)

foreign = App("bench-foreign")
"""Of a worker that holds sessions of others and must not run their turns."""


@foreign.activity
async def block(context: ActivityContext) -> None:
    """Never ends."""
    await anyio.sleep_forever()


@foreign.orchestration
async def flood(context: OrchestrationContext, order: Flood) -> None:
    """Queues many activities on a session."""
    blocks = [context.schedule_activity(block) for _ in range(order.items)]
    await context.gather(*(one.on_session(order.session, ordered=order.ordered) for one in blocks))
