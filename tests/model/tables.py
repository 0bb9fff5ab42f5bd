"""Instances in the memory of workers: real `InstanceTable`s. A plan delivers each of their requests to the database,
and each reply, when it likes.

What an orchestration returns shows what it received: which instance it is, and its messages in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeAlias

import anyio.lowlevel
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic_core import from_json, to_json

from affinity import App, OrchestrationContext
from affinity.composed.options import RuntimeOptions
from affinity.errors import ConnectionLost, ProviderError
from affinity.orchestration.activity import ActivityContext
from affinity.orchestration.events import ActivityCompleted, EventRaised, EventSent, OrchestrationStarted
from affinity.orchestration.wire import ANY_EXECUTION, ActivityTask, decode_task, encode_message
from affinity.provider.contract import (
    FetchOptions,
    Generation,
    HistoryCursor,
    HistoryPage,
    Incarnation,
    InstanceInfo,
    NewInstance,
    NewMessage,
    OrchestrationItem,
    Provider,
    Release,
    Suspend,
    Turn,
    TurnResult,
    WorkAbandon,
    WorkAck,
    WorkerIdentity,
    WorkItem,
    WorkKey,
)
from affinity.worker.instances import InstanceTable
from affinity.worker.replays import Replays
from affinity.worker.results import StagedResult
from affinity.worker.services import REAL_TIME
from affinity.worker.turns import ANY_WORK, BuiltTurn
from affinity_conformance.providers.builders import profile
from tests.model.cluster_state import TIMEOUTS
from tests.model.databases import ModelDatabase
from tests.model.leases import Violation
from tests.model.reference import LEASE

END: Final = -1
"""The last message of an instance."""

ROUNDS: Final = 300
"""In which whatever there is comes to its end."""

app: Final = App("model")


@app.activity
async def echo(_: ActivityContext, number: int) -> int:
    """Never run: the plan gives its result."""
    await anyio.lowlevel.checkpoint()
    return number


@app.orchestration
async def inbox(ctx: OrchestrationContext, got: list[int]) -> list[int]:
    """Keeps what it receives; some instances go on as new after each message, some have an activity for each."""
    _, turns, session, *_ = got
    for _ in range(turns):
        number = await ctx.schedule_wait("message", int)
        if session:
            number = await ctx.schedule_activity(echo, number).on_session(f"s{session}")
        got = [*got, number]
        if number == END:
            return got
    ctx.continue_as_new(got)


# -- the plan


@dataclass(frozen=True)
class Begin:
    """A client starts an instance."""

    instance: int
    turns: int = 1  # after which it goes on as new
    session: int = 0  # of its activities; 0: it has none


@dataclass(frozen=True)
class Raise:
    """A client sends the next message."""

    instance: int


@dataclass(frozen=True)
class DeleteInstance:
    instance: int


@dataclass(frozen=True)
class SendFetch:
    """The worker sends a fetch of instances."""

    worker: int


@dataclass(frozen=True)
class RunFetch:
    """The database carries it out."""

    worker: int


@dataclass(frozen=True)
class ReceiveFetch:
    """The worker has its reply."""

    worker: int


@dataclass(frozen=True)
class ReplayEvent:
    """The worker reads and replays one more event of an instance that it does not have in memory."""

    worker: int


@dataclass(frozen=True)
class Write:
    """The database commits the turns that the worker has sent."""

    worker: int


@dataclass(frozen=True)
class Settle:
    """The worker hears what became of them, or that the connection is lost."""

    worker: int
    lost: bool = False


@dataclass(frozen=True)
class Work:
    """The worker fetches work."""

    worker: int


@dataclass(frozen=True)
class FinishActivity:
    """An activity ends."""

    worker: int
    which: int = 0


@dataclass(frozen=True)
class Flush:
    """Write the work that the worker gives up or sends the plain way."""

    worker: int


@dataclass(frozen=True)
class ExpireLease:
    """The worker's lease lapses, and comes back."""

    worker: int


@dataclass(frozen=True)
class Restart:
    worker: int


TableStep: TypeAlias = (
    Begin
    | Raise
    | DeleteInstance
    | SendFetch
    | RunFetch
    | ReceiveFetch
    | ReplayEvent
    | Write
    | Settle
    | Work
    | FinishActivity
    | Flush
    | ExpireLease
    | Restart
)

_worker: Final = st.sampled_from([0, 0, 0, 1])
_instance: Final = st.sampled_from([0, 0, 1])

_KINDS: Final[tuple[tuple[int, SearchStrategy[TableStep]], ...]] = (
    (4, st.builds(Begin, _instance, st.sampled_from([1, 2]), st.sampled_from([0, 0, 1]))),
    (12, st.builds(Raise, _instance)),
    (1, st.builds(DeleteInstance, _instance)),
    (12, st.builds(SendFetch, _worker)),
    (12, st.builds(RunFetch, _worker)),
    (12, st.builds(ReceiveFetch, _worker)),
    (12, st.builds(ReplayEvent, _worker)),
    (12, st.builds(Write, _worker)),
    (12, st.builds(Settle, _worker, st.sampled_from([False, False, False, True]))),
    (4, st.builds(Work, _worker)),
    (4, st.builds(FinishActivity, _worker, st.integers(0, 2))),
    (4, st.builds(Flush, _worker)),
    (1, st.builds(ExpireLease, _worker)),
    (1, st.builds(Restart, _worker)),
)
_STEPS: Final = st.sampled_from([kind for share, kind in _KINDS for _ in range(share)]).flatmap(lambda kind: kind)


def _fetch(worker: int) -> list[TableStep]:
    return [SendFetch(worker), RunFetch(worker), ReceiveFetch(worker), *[ReplayEvent(worker)] * 3]


def _commit(worker: int) -> list[TableStep]:
    return [Write(worker), Settle(worker)]


def _talk(worker: int, instance: int) -> list[TableStep]:
    """A message comes in, and leads to a turn."""
    return [Raise(instance), *_fetch(worker), *_commit(worker)]


def _fetch_meanwhile(worker: int, instance: int) -> list[TableStep]:
    """A fetch is sent before a turn is committed, and reaches the database after it."""
    committing: list[TableStep] = [Raise(instance), *_fetch(worker), Raise(instance), *_fetch(worker)]
    return [*committing, SendFetch(worker), *_commit(worker), Raise(instance), RunFetch(worker), ReceiveFetch(worker)]


def _begin_again(worker: int, instance: int) -> list[TableStep]:
    """An instance is deleted, and its id used again, while a turn of it is on its way."""
    return [
        Begin(instance),
        *_fetch(worker),
        DeleteInstance(instance),
        Begin(instance),
        *_fetch(worker),
        *_commit(worker),
    ]


_PARTS: Final[SearchStrategy[list[TableStep]]] = st.sampled_from(
    [
        *[_STEPS.map(lambda step: [step])] * 6,
        *[st.builds(episode, _worker, _instance) for episode in (_talk, _talk, _fetch_meanwhile, _begin_again)],
    ]
).flatmap(lambda kind: kind)

TABLE_PLANS: Final[SearchStrategy[list[TableStep]]] = st.lists(st.lists(_PARTS, max_size=6), max_size=20).map(
    lambda parts: [step for part in parts for some in part for step in some]
)


# -- the workers


@dataclass
class TableWorker:
    """A worker without loops: what it submits waits until the plan carries it out."""

    provider: Provider
    identity: WorkerIdentity
    turns: list[tuple[Turn, Callable[[TurnResult | ProviderError], None]]] = field(default_factory=list)
    results: list[tuple[TurnResult, Callable[[TurnResult | ProviderError], None]]] = field(default_factory=list)
    acks: list[WorkAck] = field(default_factory=list)
    abandons: list[WorkAbandon] = field(default_factory=list)
    suspends: list[tuple[Suspend, Callable[[bool], None]]] = field(default_factory=list)
    releases: list[tuple[Release, Callable[[], None]]] = field(default_factory=list)
    running: list[tuple[WorkItem, ActivityTask]] = field(default_factory=list)
    asked: list[int] | None = None  # the messages that a fetch under way leaves out
    answer: Sequence[OrchestrationItem] | None = None
    input_size: int = 0
    waits_for_room: bool = False

    def __post_init__(self) -> None:
        self.options = RuntimeOptions.model_construct(max_attempts=1_000_000, instance_cache_size=2)
        self.replays = Replays(self.read_history, self.written)
        part: Any = self  # each part of a worker that the table asks
        self.notifier = self.lease = self.metrics = self.health = self.fetch_state = part
        self.timing = REAL_TIME
        self.placement = ANY_WORK
        self.table = InstanceTable(
            app,
            part,
            code="model",
            capacity=part,
            commits=part,
            activities=part,
            sessions=part,
            replays=self.replays,
            sent_events=part,
            registrations=part,
        )

    # what it asks of `Lease`, `Capacity`, `Commits`, `ActivityRunner`, `Notifier`, `HeldSessions` and `Registrations`

    def note_missing(self, orchestration: str) -> None:
        pass

    def note(self, sender: str, events: Sequence[EventSent]) -> None:
        pass

    def now(self) -> float:
        return 0.0

    def slots_for_new_work(self) -> int:
        return 1

    def slots_for_plain_work(self) -> int:
        return 1

    def try_reserve_session(self, session_id: str) -> bool:
        return session_id == "s1"

    def submit_turn(self, built: BuiltTurn, done: Callable[[TurnResult | ProviderError], None]) -> None:
        self.turns.append((built.turn, done))

    def submit_ack(self, ack: WorkAck, staged: StagedResult | None, *, ordered: bool) -> None:
        assert staged is None
        self.acks.append(ack)

    def submit_abandon(self, abandon: WorkAbandon) -> None:
        self.abandons.append(abandon)

    def submit_suspend(self, suspend: Suspend, done: Callable[[bool], None]) -> None:
        self.suspends.append((suspend, done))

    def submit_release(self, release: Release, done: Callable[[], None]) -> None:
        self.releases.append((release, done))

    def start(self, item: WorkItem, task: ActivityTask) -> None:
        self.running.append((item, task))

    def cancel(self, keys: Collection[WorkKey], reason: str) -> None:
        self.running = [each for each in self.running if each[0].lock.key not in keys]

    def read_ahead(self, turn: Turn) -> None: ...

    def hint(self, worker: str | None, *, cancel: bool = False) -> None: ...

    def share(self) -> None: ...

    def recheck(self, session_id: str) -> None: ...

    def count_orchestration(self, name: str, outcome: str) -> None: ...

    async def written(self) -> None: ...

    async def read_history(self, cursors: Sequence[HistoryCursor]) -> Sequence[HistoryPage]:
        return await self.provider.read_history(cursors, max_bytes=1)

    def on_memory_freed(self) -> None: ...

    def hint_owner(self, instance_id: str) -> None: ...

    def notify_fetcher(self) -> None: ...

    def fetch_after(self, seconds: float) -> None: ...

    # what the plan does

    def ask(self) -> None:
        if self.asked is None and self.answer is None:
            self.asked = self.table.excluded_messages()

    async def fetch(self) -> None:
        if self.asked is not None:
            fetched = await self.provider.fetch_orchestration_item(
                self.identity, limit=10, names=("inbox", "inbox@1"), unknown_after=60.0, exclude=self.asked
            )
            self.asked, self.answer = None, fetched.items

    async def hear(self) -> None:
        if self.answer is not None:
            answer, self.answer = self.answer, None
            self.table.deliver(answer)

    async def replay(self) -> None:
        await self.replays.take_round()

    async def write(self) -> None:
        if self.turns and not self.results:
            batch, self.turns = self.turns, []
            results = await self.provider.commit_turn(self.identity, [turn for turn, _ in batch], TIMEOUTS)
            self.results = [(result, done) for result, (_, done) in zip(results, batch, strict=True)]

    def settle(self, *, lost: bool) -> None:
        results, self.results = self.results, []
        for result, done in results:
            done(ConnectionLost("the plan has it so") if lost else result)

    async def work(self) -> None:
        options = FetchOptions(limit=10, max_sessions=10, names=("echo",), unknown_after=60.0, timeouts=TIMEOUTS)
        fetched = await self.provider.fetch_work_item(self.identity, options)
        self.running += [(item, decode_task(item.payload)) for item in fetched.items]

    def finish(self, which: int) -> None:
        if self.running:
            item, task = self.running.pop(which % len(self.running))
            self.table.deliver_result(item, ActivityCompleted(item.lock.key.activity_id, task.input))

    async def flush(self) -> None:
        acks, self.acks = self.acks, []
        abandons, self.abandons = self.abandons, []
        await self.provider.ack_work_item(self.identity, acks, TIMEOUTS)
        await self.provider.abandon_work_item(self.identity, abandons)
        suspends, self.suspends = self.suspends, []
        if suspends:
            raise Violation(f"an instance is suspended: {suspends[0][0].message}")
        releases, self.releases = self.releases, []
        await self.provider.release_instance(self.identity, [release for release, _ in releases])
        for _, done in releases:
            done()


@dataclass
class Dialog:
    """What a client has sent to an instance."""

    opening: list[int]
    sent: int = 0
    over: bool = False


class TableCluster:
    """One plan's run."""

    def __init__(self, database: ModelDatabase) -> None:
        self._database = database
        self._numbers = count(1)
        self._workers: dict[int, TableWorker] = {}
        self._conversations: dict[str, Dialog] = {}

    async def run(self, plan: Sequence[TableStep]) -> None:
        """Carry the plan out, then let every conversation come to its end."""
        await self._database.begin()
        try:
            self._provider = await self._database.provider()
            for worker in range(2):
                await self._restart(worker)
            for step in plan:
                await self._step(step)
            await self._end()
        finally:
            await self._database.end()

    async def _step(self, step: TableStep) -> None:
        match step:
            case Begin():
                await self._begin(f"i{step.instance}", step.turns, step.session)
            case Raise():
                await self._raise(f"i{step.instance}")
            case DeleteInstance():
                await self._provider.delete_instance([f"i{step.instance}"], force=True)
                self._conversations.pop(f"i{step.instance}", None)
            case Restart():
                await self._restart(step.worker)
            case _:
                await self._act(self._workers[step.worker], step)

    async def _act(self, worker: TableWorker, step: TableStep) -> None:
        match step:
            case SendFetch():
                worker.ask()
            case RunFetch():
                await worker.fetch()
            case ReceiveFetch():
                await worker.hear()
            case ReplayEvent():
                await worker.replay()
            case Write():
                await worker.write()
            case Settle():
                worker.settle(lost=step.lost)
            case Work():
                await worker.work()
            case FinishActivity():
                worker.finish(step.which)
            case Flush():
                await worker.flush()
            case ExpireLease():
                worker.asked = worker.answer = None
                worker.running.clear()
                worker.table.drop_all()
                await self._provider.register_worker(worker.identity, LEASE, {}, resume=True, profile=profile())

    async def _restart(self, number: int) -> None:
        incarnation = Incarnation(f"w{number} {next(self._numbers)}")
        identity = WorkerIdentity(worker_id=f"w{number}", incarnation=incarnation)
        await self._provider.register_worker(identity, LEASE, {}, profile=profile())
        self._workers[number] = TableWorker(self._provider, identity)

    async def _begin(self, name: str, turns: int, session: int) -> None:
        number = next(self._numbers)
        opening = [number, turns, session]
        started = OrchestrationStarted(name="inbox", version="", input=to_json(opening).decode())
        new = NewInstance(
            instance_id=name,
            name="inbox",
            version=None,
            start=encode_message(ANY_EXECUTION, started),
            generation=Generation(f"generation {number}"),
        )
        (created,) = await self._provider.create_instance([new])
        if created:
            self._conversations[name] = Dialog(opening)

    async def _raise(self, name: str, *, last: bool = False) -> None:
        conversation = self._conversations.get(name)
        if conversation is None or conversation.over:
            return
        event = EventRaised(name="message", data=str(END if last else conversation.sent))
        await self._provider.send_message([NewMessage(instance_id=name, payload=encode_message(ANY_EXECUTION, event))])
        conversation.sent += not last
        conversation.over = last

    async def _end(self) -> None:
        await self._database.advance(1_000)
        for name in self._conversations:
            await self._raise(name, last=True)
        await self._restart(9)
        last = self._workers[9]
        await self._provider.sweep(interval=0.0, session_retention=1e9, worker_retention=1e9)
        for _ in range(ROUNDS):
            if all(info.status == "completed" for info in await self._infos()):
                break
            await self._go_round(last)
        for info in await self._infos():
            self._judge(info)

    async def _go_round(self, worker: TableWorker) -> None:
        worker.ask()
        await worker.fetch()
        await worker.hear()
        while worker.replays:
            await worker.replay()
        await worker.write()
        worker.settle(lost=False)
        await worker.work()
        worker.finish(0)
        await worker.flush()

    async def _infos(self) -> list[InstanceInfo]:
        found = await self._provider.get_instance(list(self._conversations))
        if None in found:
            raise Violation("an instance is gone")
        return [info for info in found if info is not None]

    def _judge(self, info: InstanceInfo) -> None:
        conversation = self._conversations[info.instance_id]
        wanted = [*conversation.opening, *range(conversation.sent), END]
        found = info.output if info.output is None else from_json(info.output)
        if found != wanted:
            raise Violation(f"{info.instance_id} is {info.status} with {found}, error {info.error}; wanted {wanted}")
