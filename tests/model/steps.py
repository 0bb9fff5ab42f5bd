"""The steps of plans, and how plans are drawn. A step that makes no sense where it stands does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Final, Literal, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

WORKERS: Final = 3
INSTANCES: Final = 4
SESSIONS: Final = 2
SCRIPTS: Final = 2

Reply: TypeAlias = Literal["heard", "lost", "twice", "late"]
"""The fate of a request: its reply arrives, or is lost, or it is sent again; or a later `Deliver` sends it."""

End: TypeAlias = Literal["", "continue", "complete", "fail", "cancel"]


@dataclass(frozen=True)
class StartWorker:
    """A process of that name starts; the one before, if any, has crashed or is fenced."""

    worker: int


@dataclass(frozen=True)
class Renew:
    """Renew the worker's lease."""

    worker: int


@dataclass(frozen=True)
class Resume:
    """The same incarnation registers again."""

    worker: int


@dataclass(frozen=True)
class Drain:
    worker: int


@dataclass(frozen=True)
class Leave:
    worker: int


@dataclass(frozen=True)
class FetchWork:
    worker: int
    limit: int = 10
    room: int = 10  # sessions that it may hold
    reply: Reply = "heard"


@dataclass(frozen=True)
class FetchInstances:
    worker: int
    limit: int = 10
    exclude: bool = False  # what it has in hand
    reply: Reply = "heard"


@dataclass(frozen=True)
class TurnStep:
    """One turn of the worker's instance number ``which``."""

    which: int = 0
    consume: int = 9  # messages at most
    acks: bool = True  # take the results of the work in hand
    saves: bool = True  # with session state
    schedule: tuple[int | None, ...] = ()  # sessions of new work; None: without
    here: bool = True
    claim: bool = False
    delay: int = 0  # of work and messages
    timer: int | None = None  # seconds
    child: int | None = None
    send: int | None = None  # instance; sent after the child is created
    watch: int | None = None  # session
    hold: int | None = None  # session
    release: int | None = None  # session
    ordered: bool = False  # new work of sessions
    wake: int | None = None  # journal to which a wake writes what it makes of what the worker has read of it
    says: int | None = None  # event id of an entry of the wake
    asks: int | None = None  # a request
    expires: bool = False
    revisit: int | None = None  # key
    foreign: bool = False  # it names messages of other instances, too
    cancel: Literal["", "new", "all"] = ""  # activities and timers: of this turn, or all of the execution
    end: End = ""


@dataclass(frozen=True)
class Commit:
    worker: int
    turns: tuple[TurnStep, ...] = (TurnStep(),)
    reply: Reply = "heard"


@dataclass(frozen=True)
class Deliver:
    """The oldest request that is late arrives."""

    worker: int


@dataclass(frozen=True)
class Ack:
    worker: int
    which: int = 0
    saves: bool = True
    reply: Reply = "heard"


@dataclass(frozen=True)
class Checkpoint:
    """Save the state of a running activity by itself, under its epoch."""

    worker: int
    which: int = 0
    reply: Reply = "heard"


@dataclass(frozen=True)
class GiveBack:
    worker: int
    which: int = 0
    delay: int = 0
    failed: bool = False
    counted: bool = True
    release: bool = False
    reply: Reply = "heard"


@dataclass(frozen=True)
class RenewLocks:
    worker: int


@dataclass(frozen=True)
class ReleaseUnknownLocks:
    worker: int


@dataclass(frozen=True)
class HandOver:
    worker: int
    which: int = 0
    to: int | None = None


@dataclass(frozen=True)
class SuspendInstance:
    """The worker cannot go on with an instance."""

    worker: int
    which: int = 0
    needs_code: bool = True


@dataclass(frozen=True)
class Retry:
    """A worker takes suspended instances over that its code has not tried."""

    worker: int


@dataclass(frozen=True)
class ResumeInstance:
    """An operator lets a suspended instance go on."""

    instance: int


@dataclass(frozen=True)
class ResetInstance:
    """An operator opens an instance again at an earlier event."""

    instance: int
    keep: int = 1  # events, modulo how many there are
    session: int | None = None  # of its work, which is queued again


@dataclass(frozen=True)
class RestartInstance:
    """A client starts the id of an ended instance again."""

    instance: int


@dataclass(frozen=True)
class ReleaseSession:
    """An operator releases a session."""

    session: int


@dataclass(frozen=True)
class MakeRoom:
    """A worker releases idle sessions for others that wait."""

    worker: int
    room: int = 1  # sessions that it may hold
    in_use: bool = False  # its sessions


@dataclass(frozen=True)
class Create:
    instance: int
    reply: Reply = "heard"


@dataclass(frozen=True)
class Send:
    instance: int
    delay: int = 0
    key: int | None = None
    reply: Reply = "heard"


@dataclass(frozen=True)
class AppendInput:
    """A client appends an input to the journal of an instance."""

    instance: int
    event: int | None = None
    start: bool = True  # creates the journal, and the instance
    wakes: bool = True  # with a message
    answers: int | None = None
    drops: bool = False
    closes: bool = False
    reply: Reply = "heard"


@dataclass(frozen=True)
class ReadPending:
    """A worker reads what a wake has to do."""

    worker: int
    instance: int


@dataclass(frozen=True)
class PruneJournals:
    most: int = 3


@dataclass(frozen=True)
class DeleteJournal:
    instance: int


@dataclass(frozen=True)
class Delete:
    instance: int
    force: bool = True
    tree: bool = True


@dataclass(frozen=True)
class Load:
    """A script reads a record, and remembers what it has seen."""

    script: int
    session: int


@dataclass(frozen=True)
class Save:
    """A script writes the read value and something more, if there was no write since; or whatever there is."""

    script: int
    session: int
    checked: bool = True
    key: bool = False  # with an idempotency key
    reply: Reply = "heard"  # late: it is held up in the middle, where the database allows it, until `FinishWrites`


@dataclass(frozen=True)
class Remove:
    """A script deletes a record."""

    script: int
    session: int
    reply: Reply = "heard"


@dataclass(frozen=True)
class FinishWrites:
    """A held up call of a script ends."""


@dataclass(frozen=True)
class Pass:
    """Time passes."""

    seconds: int


@dataclass(frozen=True)
class RunSweep:
    retention: int = 1_000_000


@dataclass(frozen=True)
class Remember:
    """A standby has the present contents."""


@dataclass(frozen=True)
class LoseTail:
    """The standby takes over: what came after the last `Remember` is gone. All workers start again."""


PlanStep: TypeAlias = (
    StartWorker | Renew | Resume | Drain | Leave | FetchWork | FetchInstances | Commit | Deliver | Ack | Checkpoint
    | GiveBack | RenewLocks | ReleaseUnknownLocks | HandOver | SuspendInstance | Retry | ResumeInstance | ResetInstance
    | RestartInstance
    | ReleaseSession | MakeRoom
    | AppendInput | ReadPending | PruneJournals | DeleteJournal
    | Create | Send | Delete | Load | Save | Remove | FinishWrites | Pass | RunSweep | Remember | LoseTail
)  # fmt: skip


Plan: TypeAlias = list[PlanStep]

_worker: Final = st.sampled_from([0, 0, 0, 1, 1, 2])
_instance: Final = st.sampled_from([0, 0, 0, 1, 1, 2, 3])
_session: Final = st.sampled_from([0, 0, 1])
_script: Final = st.integers(0, SCRIPTS - 1)
_which: Final = st.integers(0, 2)
_event: Final = st.sampled_from([None, None, 0, 1])
_delay: Final = st.sampled_from([0, 0, 0, 7, 50])


def _replies(*others: Reply) -> SearchStrategy[Reply]:
    """Mostly heard."""
    heard: tuple[Reply, ...] = ("heard",)
    return st.sampled_from(heard * (2 * len(others)) + others)


_usual: Final = _replies("lost", "twice")
_late: Final = _replies("late", "lost", "twice")

_any_turns: Final = st.builds(
    TurnStep,
    which=_which,
    consume=st.sampled_from([9, 9, 1, 0]),
    acks=st.booleans(),
    saves=st.booleans(),
    schedule=st.lists(st.sampled_from([None, 0, 0, 1]), max_size=2).map(tuple),
    here=st.booleans(),
    claim=st.booleans(),
    delay=_delay,
    timer=st.sampled_from([None, None, 0, 7, 50]),
    child=st.sampled_from([None, None, 1, 2, 3]),
    send=st.sampled_from([None, None, 1, 2, 3]),
    watch=st.sampled_from([None, None, 0, 1]),
    hold=st.sampled_from([None, None, None, 0, 1]),
    release=st.sampled_from([None, None, None, 0, 1]),
    ordered=st.booleans(),
    wake=st.sampled_from([None, None, 0, 0, 1]),
    says=_event,
    asks=_event,
    expires=st.booleans(),
    revisit=_event,
    foreign=st.booleans(),
    cancel=st.sampled_from(["", "", "", "new", "all"]),
    end=st.sampled_from(["", "", "", "", "", "", "continue", "complete", "fail", "cancel"]),
)

# Some of them send to the very child that they create.
_turns: Final = st.builds(
    lambda step, to_child: replace(step, send=step.child) if to_child else step, _any_turns, st.booleans()
)

_creates: Final = st.builds(Create, _instance, _usual)
_appends: Final = st.builds(
    AppendInput,
    st.sampled_from([0, 0, 0, 1, 2]),
    _event,
    st.sampled_from([True, True, True, False]),
    st.sampled_from([True, True, False]),
    st.sampled_from([None, None, None, 0, 1]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False] * 5 + [True]),
    _usual,
)
_reads: Final = st.builds(ReadPending, _worker, st.sampled_from([0, 0, 1]))
_deletes: Final = st.builds(Delete, _instance, st.booleans(), st.booleans())
_instances: Final = st.builds(FetchInstances, _worker, st.sampled_from([10, 10, 1]), st.booleans(), _usual)
_commits: Final = st.builds(Commit, _worker, st.lists(_turns, min_size=1, max_size=3).map(tuple), _late)
_fetches: Final = st.builds(FetchWork, _worker, st.sampled_from([10, 1]), st.sampled_from([10, 10, 1, 0]), _usual)
_acks: Final = st.builds(Ack, _worker, _which, st.booleans(), _usual)
_saves: Final = st.builds(Save, _script, _session, st.booleans(), st.booleans(), _late)
_loads: Final = st.builds(Load, _script, _session)
_removes: Final = st.builds(Remove, _script, _session, _late)

_KINDS: Final[tuple[tuple[int, SearchStrategy[PlanStep]], ...]] = (
    (24, _commits),
    (10, _instances),
    (10, _fetches),
    (6, _creates),
    (5, _acks),
    (5, _saves),
    (4, st.builds(Deliver, _worker)),
    (5, st.builds(Send, _instance, _delay, _event, _usual)),
    (8, _appends),
    (6, _reads),
    (1, st.builds(PruneJournals, st.sampled_from([0, 1, 3]))),
    (1, st.builds(DeleteJournal, st.sampled_from([0, 1]))),
    (4, st.builds(Pass, st.sampled_from([1, 7, 10, 20, 40, 70, 200]))),
    (2, _deletes),
    (2, _loads),
    (2, _removes),
    (1, st.just(FinishWrites())),
    (1, st.builds(Checkpoint, _worker, _which, _usual)),
    (2, st.builds(GiveBack, _worker, _which, _delay, st.booleans(), st.booleans(), st.booleans(), _usual)),
    (1, st.builds(RenewLocks, _worker)),
    (2, st.builds(ReleaseUnknownLocks, _worker)),
    (1, st.builds(HandOver, _worker, _which, st.sampled_from([None, 0, 1, 2]))),
    (2, st.builds(SuspendInstance, _worker, _which, st.booleans())),
    (1, st.builds(Retry, _worker)),
    (1, st.builds(ResumeInstance, _instance)),
    (3, st.builds(ResetInstance, _instance, st.integers(0, 3), st.sampled_from([None, 0, 1]))),
    (3, st.builds(RestartInstance, _instance)),
    (2, st.builds(ReleaseSession, _session)),
    (3, st.builds(MakeRoom, _worker, st.sampled_from([1, 1, 2]), st.booleans())),
    (1, st.builds(Renew, _worker)),
    (1, st.builds(Resume, _worker)),
    (2, st.builds(StartWorker, _worker)),
    (1, st.builds(Drain, _worker)),
    (1, st.builds(Leave, _worker)),
    (1, st.builds(RunSweep, st.sampled_from([1_000_000, 30, 0]))),
    (1, st.just(Remember())),
    (1, st.just(LoseTail())),
)

STEPS: Final[SearchStrategy[PlanStep]] = st.sampled_from(
    [kind for share, kind in _KINDS for _ in range(share)]
).flatmap(lambda kind: kind)


def _serve(instance: int, worker: int, step: TurnStep) -> Plan:
    """A worker takes an instance and commits a turn of it."""
    return [Create(instance), FetchInstances(worker), Commit(worker, (step,))]


def _work(worker: int, step: TurnStep) -> Plan:
    """A worker does work, and takes the result into a turn."""
    return [FetchWork(worker), Commit(worker, (step,))]


def _converse(instance: int, worker: int, step: TurnStep, then: AppendInput, seconds: int) -> Plan:
    """A wake; more comes, and time passes, before the next one; and a wake of what was read long ago."""
    wake = replace(step, wake=instance, asks=step.asks or 0, expires=seconds > 1, revisit=step.revisit or 0, end="")
    fresh: Plan = [StartWorker(worker), Delete(instance), DeleteJournal(instance)]
    first: Plan = [AppendInput(instance), ReadPending(worker, instance), FetchInstances(worker)]
    more: Plan = [replace(then, instance=instance), Pass(seconds), Renew(worker), ReadPending(worker, instance)]
    answer: Plan = [AppendInput(instance, answers=wake.asks), ReadPending(worker, instance)]
    late: Plan = [Commit(worker, (wake,), "lost"), FetchInstances(worker), Commit(worker, (wake,))]
    return [*fresh, *first, Commit(worker, (wake,)), PruneJournals(1), *more, *late, *answer]


def _send_again(instance: int, key: int, worker: int) -> Plan:
    """A sender repeats a message, before and after the instance has read it."""
    send = Send(instance, key=key)
    return [Create(instance), send, send, FetchInstances(worker), Commit(worker), send]


def _queue_in_order(instance: int, worker: int, step: TurnStep) -> Plan:
    """Several ordered items of one session, from two turns."""
    queue = replace(step, schedule=(0, 0), ordered=True, cancel="", end="")
    return [*_serve(instance, worker, queue), Commit(worker, (queue,)), FetchWork(worker), FetchWork(worker)]


def _use_again(instance: int, worker: int, late: TurnStep | None) -> Plan:
    """An instance is deleted, and its id used again, while the worker has it in memory, or commits a turn of it."""
    turns: Plan = [] if late is None else [Commit(worker, (late,), "late")]
    again: Plan = [Delete(instance), Create(instance), FetchInstances(worker)]
    return [
        StartWorker(worker),
        Create(instance),
        FetchInstances(worker),
        *turns,
        *again,
        Deliver(worker),
        Commit(worker),
    ]


def _write_meanwhile(instance: int, worker: int, write: Save | Remove, before: bool) -> Plan:
    """A script writes while a worker claims the session and reads its record."""
    saved: Plan = [Save(write.script, write.session, checked=False), RunSweep(0)] if before else []
    queue = TurnStep(schedule=(write.session, write.session), here=False)
    claim: Plan = [write, FetchWork(worker, 1), FinishWrites(), FetchWork(worker, 1)]
    return [StartWorker(worker), *saved, Delete(instance), *_serve(instance, worker, queue), *claim]


def _write_again(session: int, save: Save) -> Plan:
    """A record is deleted and written anew between a script's reading and writing."""
    mine, other = save.script, 1 - save.script
    anew: Plan = [Remove(other, session), Save(other, session, checked=False)]
    first: Plan = [Remove(mine, session), Save(mine, session, checked=False), Load(mine, session)]
    return [*first, *anew, replace(save, session=session)]


def _lose(steps: Plan) -> Plan:
    """A standby is behind, and takes over."""
    return [Remember(), *steps, LoseTail()]


def _lose_turns(instance: int, worker: int, step: TurnStep) -> Plan:
    """Both the lost tail and its replacement have messages, turns and work of sessions."""
    done: Plan = [Delete(instance), *_serve(instance, worker, step), FetchWork(worker), Send(instance)]
    return [Remember(), *done, FetchInstances(worker), LoseTail(), *done, FetchInstances(worker)]


_held_up: Final = st.one_of(
    st.builds(Save, _script, _session, checked=st.just(False), reply=st.just("late")),
    st.builds(Remove, _script, _session, reply=st.just("late")),
)

# What belongs together, as chance alone would seldom have it.
_EPISODES: Final[tuple[SearchStrategy[Plan], ...]] = (
    st.builds(_serve, _instance, _worker, _turns),
    st.builds(_work, _worker, _turns),
    st.builds(_converse, _instance, _worker, _turns, _appends, st.sampled_from([1, 10, 10, 40])),
    st.builds(_send_again, _instance, st.integers(0, 1), _worker),
    st.builds(_queue_in_order, _instance, _worker, _turns),
    st.builds(_use_again, _instance, _worker, st.none() | _turns),
    st.builds(_write_meanwhile, _instance, _worker, _held_up, st.booleans()),
    st.builds(_write_again, _session, _saves),
    st.builds(_lose, st.lists(STEPS, max_size=5)),
    st.builds(_lose_turns, _instance, _worker, _turns),
)

_PARTS: Final[SearchStrategy[Plan]] = st.sampled_from(
    [STEPS.map(lambda step: [step])] * len(_EPISODES) + [*_EPISODES]
).flatmap(lambda kind: kind)

# Lists of lists, since hypothesis makes a single one short.
PLANS: Final[SearchStrategy[Plan]] = st.lists(st.lists(_PARTS, max_size=6), max_size=20).map(
    lambda parts: [step for part in parts for some in part for step in some]
)


def describe(plan: Sequence[object]) -> str:
    """The plan as Python, one step a line, without default fields."""
    return "".join(f"    {_describe(step)},\n" for step in plan)


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + "".join(f"{_describe(each)}, " for each in value) + ")"
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    set_fields = [f for f in fields(value) if getattr(value, f.name) != f.default]
    return f"{type(value).__name__}({', '.join(f'{f.name}={_describe(getattr(value, f.name))}' for f in set_fields)})"
