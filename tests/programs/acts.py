"""Acts of clients and operators on the instances of a random program, as data, and how they are played."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

import anyio.to_thread
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from affinity import ExternalEvent, Start
from affinity.client import IfEnded
from affinity.errors import (
    Contention,
    InstanceFinished,
    InstanceNotFinished,
    InstanceNotSuspended,
    InvalidInput,
    NoReply,
    SessionNotFound,
    SessionWriteConflict,
    UnknownInstance,
    UnknownWorker,
)
from tests.programs.bodies import EVENTS, INSTANCES, SESSIONS, Job
from tests.programs.interpreter import Kept, body, sessions
from tests.programs.names import ASK, LABELS, NAME, event_name, instance_id, session_id
from tests.programs.play import Play
from tests.programs.slots import LIMITS, ROOM, LimitActKind, change
from tests.programs.threads import InThread


@dataclass(frozen=True)
class Send:
    """Raise an event."""

    to: int = 0
    name: int = 0
    key: bool = False
    times: int = 1  # with the same key
    after: int = 0  # ticks
    sync: bool = False


@dataclass(frozen=True)
class Ask:
    """Ask questions, and wait for the replies beside what follows."""

    to: int = 0
    times: int = 1  # each of them, with the same key
    questions: int = 1  # at the same time
    after: int = 0


@dataclass(frozen=True)
class On:
    """One call about an instance."""

    what: Literal["cancel", "restart", "delete", "kill", "resume"]
    instance: int = 0
    after: int = 0


@dataclass(frozen=True)
class Reset:
    instance: int = 0
    share: int = 0  # of the events that stay, in percent
    after: int = 0


@dataclass(frozen=True)
class Move:
    session: int = 0
    worker: int = 0
    after: int = 0


@dataclass(frozen=True)
class Write:
    """A script writes the state of a session; or removes it, or releases the session."""

    what: Literal["append", "update", "remove", "release"] = "append"  # update: by `Sessions.update`
    session: int = 0
    after: int = 0
    sync: bool = False  # by the sync client, as an event too


@dataclass(frozen=True)
class Drain:
    """A worker is drained, and resumed after so many ticks."""

    worker: int = 0
    ticks: int = 10
    after: int = 0


@dataclass(frozen=True)
class Bound:
    """An operator changes a limit."""

    what: LimitActKind = "pause"
    limit: int = 0
    after: int = 0


@dataclass(frozen=True)
class ByLabels:
    """One call about the instances with some labels."""

    what: Literal["list", "count", "cancel", "cancel_few", "resume"] = "list"
    labels: int = 0  # number in `names.LABELS`
    after: int = 0


Act: TypeAlias = Send | Ask | On | Reset | Move | Write | Drain | Bound | ByLabels

_instances: Final = st.integers(0, INSTANCES - 1)
_sessions: Final = st.integers(0, SESSIONS - 1)
_workers: Final = st.integers(0, 2)
_ticks: Final = st.integers(0, 12)
_sync: Final = st.sampled_from((False, False, False, True))

_SENDS: Final[SearchStrategy[Act]] = st.builds(
    Send,
    to=_instances,
    name=st.integers(0, EVENTS - 1),
    key=st.booleans(),
    times=st.sampled_from((1, 1, 2)),
    after=_ticks,
    sync=_sync,
)

ACTS: Final[SearchStrategy[Act]] = st.one_of(
    _SENDS,
    _SENDS,
    st.builds(Ask, to=_instances, times=st.sampled_from((1, 1, 2)), questions=st.sampled_from((1, 2)), after=_ticks),
    st.builds(
        On, st.sampled_from(("cancel", "cancel", "restart", "delete", "kill", "resume")), _instances, after=_ticks
    ),
    st.builds(Reset, instance=_instances, share=st.integers(0, 100), after=_ticks),
    st.builds(Move, session=_sessions, worker=_workers, after=_ticks),
    st.builds(
        Write, st.sampled_from(("append", "update", "update", "release", "remove")), _sessions, after=_ticks, sync=_sync
    ),
    st.builds(Drain, worker=_workers, ticks=_ticks, after=_ticks),
    st.builds(
        ByLabels,
        st.sampled_from(("list", "count", "cancel", "cancel_few", "resume")),
        labels=st.integers(0, len(LABELS) - 1),
        after=_ticks,
    ),
    st.builds(Bound, st.sampled_from(get_args(LimitActKind)), st.integers(0, len(LIMITS) - 1), after=_ticks),
)


@dataclass
class Seen:
    """Facts about the clients for the oracle."""

    sent: dict[str, tuple[int, int]] = field(default_factory=dict)  # accepted events: instance, its generation
    generations: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # how often an id was restarted
    cancelled: dict[int, int] = field(default_factory=dict)  # instances, and how often they were opened by then
    opened: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # restarted or reset so often
    reset: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    written: dict[str, tuple[int, int]] = field(default_factory=dict)  # marks, with session and place, from 1
    replies: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # keys of questions for whose replies the caller may not have waited
    attempts: dict[str, int] = field(default_factory=dict)  # the last one of an activity that has begun, by its mark
    has_faults: bool = False  # the program has
    crowded: list[str] = field(default_factory=list)  # where more activities ran, or began, than a limit allows
    removed: set[int] = field(default_factory=set)  # records of sessions
    opened_at: datetime | None = None  # when all instances were let begin that had waited for a slot


class ByLabelAndName(TypedDict):
    """Conditions of instances."""

    labels: Mapping[str, str]
    name: str


class Player:
    """Plays the acts of one client."""

    def __init__(self, play: Play, jobs: tuple[Job, ...], seen: Seen, client: int) -> None:
        self._play = play
        self._client = play.env.client
        self._jobs = jobs
        self._seen = seen
        self._name = f"client-{client}"

    async def run(self, acts: tuple[Act, ...]) -> None:
        """One after the other. An act on an instance that is not part of the program goes to another one."""
        for number, act in enumerate(acts):
            await self._play.pause(act.after)
            await self._act(act, f"{self._name}.{number}")

    async def _act(self, act: Act, unique: str) -> None:
        match act:
            case Send():
                await self._send(act, unique)
            case Ask():
                for number in range(act.questions):
                    for _ in range(act.times):
                        self._play.start_call(self._ask(act.to % len(self._jobs), f"{unique}/{number}"))
            case On():
                await self._on(act.what, act.instance % len(self._jobs))
            case Reset():
                await self._reset(act.instance % len(self._jobs), act.share)
            case Move():
                if (worker := self._play.worker(act.worker)) is not None:
                    await self._client.move_session(session_id(act.session), worker)
            case Write():
                await self._write(act, unique)
            case Drain():
                await self._drain(act)
            case ByLabels():
                await self._by_labels(act)
            case Bound():
                await change(self._client.limits, act.what, act.limit)

    async def _send(self, act: Send, unique: str) -> None:
        to = act.to % len(self._jobs)
        key = unique if act.key else None
        event = ExternalEvent(instance_id(to), event_name(act.name), unique, key)
        generation = self._seen.generations[to]
        client: Any = InThread(self._play.sync) if act.sync else self._client
        for _ in range(act.times if act.key else 1):
            (delivery,) = await client.raise_events([event])
            assert delivery in {"delivered", "repeated", "unknown", "finished"}, delivery
            if delivery == "delivered" and generation == self._seen.generations[to]:
                self._seen.sent[unique] = (to, generation)

    async def _ask(self, to: int, unique: str) -> None:
        with suppress(UnknownInstance, InstanceFinished, NoReply):
            reply = await self._client.ask(instance_id(to), ASK(unique), idempotency_key=unique)
            first = self._seen.replies.setdefault(unique, reply)
            assert first == reply, f"the question {unique}, asked again: {reply}, not {first}"

    async def _on(self, what: str, number: int) -> None:
        name, seen = instance_id(number), self._seen
        with suppress(UnknownInstance, InstanceFinished, InstanceNotFinished, InstanceNotSuspended):
            match what:
                case "cancel":
                    opened = seen.opened[number]
                    await self._client.cancel(name)
                    seen.cancelled[number] = opened
                case "restart":
                    seen.generations[number] += 1
                    seen.opened[number] += 1
                    await self._client.start_many([start_of(number, self._jobs[number], restart=True)])
                case "resume":
                    await self._client.resume(name)
                case _:
                    seen.deleted.add(number)
                    await self._client.delete(name, force=what == "kill")

    async def _by_labels(self, act: ByLabels) -> None:
        """Each instance that has the labels from its start to its end, and had begun, is asked to cancel."""
        wanted = LABELS[act.labels]
        where: ByLabelAndName = {"labels": wanted, "name": f"{NAME}.body"}
        match act.what:
            case "list":
                found = await self._client.list_instances(**where)
                wrong = [each for each in found if not wanted.items() <= dict(each.labels).items()]
                assert not wrong, f"found by {wanted}: {wrong}"
                assert len({each.instance_id for each in found}) == len(found), found
            case "count":
                assert sum((await self._client.count_instances(**where, most=2)).values()) <= 2
            case "cancel":
                opened = dict(self._seen.opened)
                await self._client.cancel_instances(**where)
                for number, job in enumerate(self._jobs):
                    if job.keeps_labels and wanted.items() <= LABELS[job.labels].items():
                        self._seen.cancelled[number] = opened.get(number, 0)
            case "cancel_few":
                assert await self._client.cancel_instances(**where, most=1) <= 1
            case _:
                await self._client.resume_instances(**where)

    async def _reset(self, number: int, share: int) -> None:
        name = instance_id(number)
        self._seen.opened[number] += 1
        self._seen.reset.add(number)
        with suppress(UnknownInstance, Contention, InvalidInput):  # it may have continued as new meanwhile
            if count := len(await self._client.history(name)):
                await self._client.reset(name, to_event=max(1, count * share // 100))

    async def _write(self, act: Write, unique: str) -> None:
        name = session_id(act.session)
        if act.what == "release":
            await self._client.release_session(name)
        elif act.what == "remove":
            self._seen.removed.add(act.session)
            with suppress(SessionNotFound):
                await self._client.session_manager.delete(name)
        else:
            with suppress(SessionWriteConflict):
                self._seen.written[unique] = (act.session, await self._append(act, name, unique))

    async def _append(self, act: Write, name: str, unique: str) -> int:
        """Append a mark to the state of a session; its place, from 1."""

        def append(kept: Kept) -> int:
            kept.marks.append(unique)
            return len(kept.marks)

        if act.what == "append":
            async with sessions.open(name, store=self._client.session_store) as kept:
                return append(kept)
        if act.sync:
            update = partial(sessions.update_sync, name, append, store=self._play.sync.session_store)
            return await anyio.to_thread.run_sync(update)
        return await sessions.update(name, append, store=self._client.session_store)

    async def _drain(self, act: Drain) -> None:
        if (name := self._play.worker(act.worker)) is None:
            return
        try:
            with suppress(UnknownWorker):  # it has been dead for long, or was removed
                await self._client.drain_worker(name)
            await self._play.pause(act.ticks)
        finally:
            with suppress(UnknownWorker):
                await self._client.resume_worker(name)


def start_of(number: int, job: Job, *, restart: bool = False) -> Start:
    """The start of an instance: some begin later, some before others."""
    session = None if job.session is None else session_id(job.session)
    ended: IfEnded = "restart" if restart else "return"
    delay = 0.2 if number % 4 == 3 else 0.0
    limits = (ROOM,) if job.limited else ()
    name, labels = instance_id(number), LABELS[job.labels]
    return Start(body, job, name, None, session, ended, delay=delay, priority=number % 3, limits=limits, labels=labels)
