"""The clients: they make the calls of a part, and remember what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeAlias, cast

import anyio
from pydantic_core import from_json

from affinity.conversation import FeedItem, JournalEvent, Reply, ToolConfirmation, UserInterrupt
from affinity.conversation.follow import EntryNumber
from affinity.conversation.journal import Description
from affinity.errors import (
    AffinityError,
    Contention,
    ConversationExists,
    ConversationTerminated,
    EntriesRemoved,
    EventIdConflict,
    InstanceFinished,
    InvalidInput,
    InvalidOptions,
    RequestNotPending,
    SessionNotFound,
    UnknownConversation,
    UnknownEntry,
    UnknownInstance,
    WaitTimeout,
    WakeFailed,
)
from tests.programs.areas.conversations.handler import NAME, Script, make, summarised, talk_id
from tests.programs.areas.conversations.script import ROOTS, ConversationScript, Do, Op
from tests.programs.calls import SECONDS, TalkCall
from tests.programs.play import Play
from tests.programs.program import Size
from tests.programs.threads import InThread

_GONE: Final = (UnknownConversation, ConversationTerminated)
_NEW: Final = (UnknownConversation, ConversationExists, InvalidOptions, Contention, EntriesRemoved)

EXPECTED: Final[dict[Do, tuple[type[AffinityError], ...]]] = {
    "pause": (),
    "send": (ConversationTerminated,),
    "ask": (*_GONE, WakeFailed, EntriesRemoved),
    "repeat": (*_GONE, EventIdConflict),
    "differ": (*_GONE, EventIdConflict),
    "answer": (*_GONE, RequestNotPending),
    "interrupt": _GONE,
    "resume": _GONE,
    "terminate": (UnknownConversation,),
    "delete": (),
    "fork": (*_NEW, UnknownEntry),
    "detach": (*_NEW, UnknownEntry),
    "merge": (*_NEW, InvalidInput),
    "compress": _NEW,
    "copy": (*_NEW, EntriesRemoved),
    "again": (*_NEW, UnknownEntry, EntriesRemoved, InvalidInput),
    "prune": (),
    "move": (),
    "release": (),
    "follow": (),
    "cancel": (UnknownInstance, InstanceFinished),
    "remove": (UnknownInstance,),
    "reset": (UnknownInstance, InvalidInput, Contention),
    "revive": (),
    "forget": (SessionNotFound,),
    "describe": (UnknownConversation,),
}
"""The errors that the documentation of each call names, and that these calls can lead to."""

REMOVING: Final[Collection[Do]] = {"delete", "forget"}
"""Calls after which there may be no conversation of the id, or another one."""

ROUNDS: Final[Mapping[Size, int]] = {"small": 200, "any": 200, "large": 4_000}
"""Pauses after which an `ask` should have returned."""

DELETE_SECONDS: Final = 60.0
"""Real seconds."""


@dataclass(frozen=True)
class Export:
    """The content of an export."""

    entries: int
    requests: set[str]
    revisits: Mapping[str, list[Any]]
    """Steps, by key."""

    @classmethod
    def of(cls, lines: Sequence[str]) -> Export:
        """The content of these lines."""
        found = [next(iter(from_json(line).items())) for line in lines]
        requests = {value["request_id"] for what, value in found if what == "request"}
        revisits = {value["key"]: value["note"] for what, value in found if what == "revisit"}
        return cls(sum(what == "entry" for what, _ in found), requests, revisits)


@dataclass(eq=False)
class Act:
    """A call that was made."""

    op: Op
    name: str
    """The conversation."""
    began: int
    ended: int | None = None
    """By one counter, as ``began``: calls that overlap are known by it."""
    error: AffinityError | None = None
    seq: EntryNumber | None = None
    event: JournalEvent | None = None
    event_id: str = ""
    reply: Reply | None = None
    again: Sequence[Reply] = ()
    """Of the same question, asked once more."""
    made: str = ""
    """Id of the conversation that it has made."""
    call: tuple[str, str, tuple[Any, ...], Mapping[str, Any]] | None = None
    """How: conversation, name of a method, arguments."""
    imported: Export | None = None
    """The content that it was imported with."""
    repeats: Act | None = None
    """Another one with the same event id."""


@dataclass(eq=False)
class Feed:
    """The items that one reader has been given."""

    name: str
    items: list[FeedItem] = field(default_factory=list)
    position: int | str = 0
    starts_late: bool = False
    """Retention has removed entries before its first one."""


@dataclass(eq=False)
class Played:
    """The acts of the clients, and the items of the readers."""

    acts: list[Act] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)
    hung: list[Act] = field(default_factory=list)
    """Calls that have not returned although nothing ran any more."""
    owned: set[str] = field(default_factory=set)
    """The conversations that were created with an owner and labels, before anything was sent to them."""


Call: TypeAlias = Callable[["_Clients", Act], Awaitable[None]]


class _Clients:
    """The clients of one part."""

    def __init__(self, play: Play, part: ConversationScript) -> None:
        self.play, self.part = play, part
        self.client = play.env.client
        self.played = Played()
        self.clock = count(1)
        self.roots, self.children = make()
        self._asking: dict[asyncio.Task[None], Act] = {}
        self._following: list[asyncio.Task[None]] = []

    @property
    def in_threads(self) -> _Clients:
        """The same, with the sync client."""
        found = copy(self)
        found.client = cast(Any, InThread(self.play.sync))
        return found

    def talk(self, name: str) -> Any:
        """The handle of a conversation: children have a slash in their ids."""
        kind = self.children if "/" in name else self.roots
        if isinstance(self.client, InThread):
            return InThread(self.play.sync.conversation(kind, name))
        return self.client.conversation(kind, name)

    async def run(self) -> Played:
        """All calls, each client's in order."""
        for name in map(talk_id, range(ROOTS if self.part.owned else 0)):
            with suppress(ConversationExists):  # an orchestration has sent something to it before
                await self.talk(name).create(**about(name))
                self.played.owned.add(name)
        async with anyio.create_task_group() as tasks:
            for number, ops in enumerate(self.part.clients):
                tasks.start_soon(self._client, number, ops)
        for _ in range(ROUNDS[self.play.size]):
            if all(task.done() for task in self._asking):
                break
            await self.play.pause(20)
            await anyio.sleep(0.005)
        hung = [act for task, act in self._asking.items() if not task.done()]
        self.played.hung = [] if self.play.suspends else hung
        for task in (*self._asking, *self._following):
            task.cancel()
        for ended in await asyncio.gather(*self._asking, *self._following, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        return self.played

    async def _client(self, number: int, ops: tuple[Op, ...]) -> None:
        for place, op in enumerate(ops):
            act = Act(op, await self._find(op.on, op.part), next(self.clock), event_id=f"{number}.{place}")
            self.played.acts.append(act)
            call = self._call(CALLS[op.do], act)
            if op.do == "ask":
                self._asking[asyncio.create_task(call)] = act
            elif op.do == "follow":
                self._following.append(asyncio.create_task(call))
            else:
                await call
            await self.play.pause(op.ticks)

    async def _call(self, call: Call, act: Act) -> None:
        try:
            await call(self.in_threads if act.op.sync else self, act)
        except EXPECTED[act.op.do] as error:
            act.error = error
        act.ended = next(self.clock)

    async def _find(self, on: int, part: str = "") -> str:
        if on < ROOTS:
            return talk_id(on) + part
        names = await self.names()
        return names[(on - ROOTS) % len(names)] if names else talk_id(0)

    async def names(self) -> list[str]:
        """The conversations that are there."""
        found = self.client.list_conversations(prefix=f"{NAME}-")
        return sorted([each.conversation_id async for each in found])

    async def make(self, act: Act, on: str, method: str, *args: Any, **options: Any) -> None:
        """Make a conversation, by a method of a handle."""
        await getattr(self.talk(on), method)(*args, **options)
        act.made, act.call = _new(act), (on, method, args, options)

    def has_removed(self, name: str) -> bool:
        """Whether a call has removed a conversation, or one above it; or tries to."""
        return any(name.startswith(each.name) and each.op.do in REMOVING for each in self.played.acts)

    def before(self, act: Act) -> Act | None:
        """A message that was sent to the same conversation."""
        sent = [
            each for each in self.played.acts if each.name == act.name and each.seq and each.op.do in ("send", "ask")
        ]
        return sent[-1] if sent else None


async def _send(clients: _Clients, act: Act) -> None:
    act.event = Script([*act.op.steps])
    act.seq = _number(await clients.talk(act.name).send(act.event, event_id=act.event_id))


async def _ask(clients: _Clients, act: Act) -> None:
    act.event = Script([*act.op.steps])
    talk = clients.talk(act.name)
    act.seq = _number(await talk.send(act.event, event_id=act.event_id))
    most = {"timeout": SECONDS} if act.op.sync else {}
    asked = [talk.ask(act.event, event_id=act.event_id, **most) for _ in range(act.op.n + 1)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    act.reply, *act.again = [each for each in found if isinstance(each, Reply)] or [None]  # type: ignore[list-item]
    for each in found:
        if isinstance(each, BaseException) and not (most and isinstance(each, WaitTimeout)):
            raise each


async def _repeat(clients: _Clients, act: Act) -> None:
    if (first := clients.before(act)) is not None and first.event is not None:
        act.repeats, act.event = first, first.event
        act.event_id = first.event_id
        act.seq = _number(await clients.talk(act.name).send(act.event, event_id=act.event_id))


async def _differ(clients: _Clients, act: Act) -> None:
    if (first := clients.before(act)) is not None:
        act.repeats, act.event = first, Script([("note", 9)])
        act.event_id = first.event_id
        act.seq = _number(await clients.talk(act.name).send(act.event, event_id=act.event_id))


async def _answer(clients: _Clients, act: Act) -> None:
    talk = clients.talk(act.name)
    for request in (await talk.requests())[:1]:
        options: dict[str, Any] = {"allowed": act.op.yes}
        if not isinstance(request.event, ToolConfirmation):
            options = {"result": 1, "is_error": not act.op.yes}
        act.seq = _number(await talk.answer(request.request_id, event_id=act.event_id, **options))
        if act.op.n % 2:
            await talk.interrupt()


async def _interrupt(clients: _Clients, act: Act) -> None:
    act.event = UserInterrupt(cancel=act.op.yes, cascade=act.op.n % 2 == 1)
    act.seq = _number(await clients.talk(act.name).send(act.event, event_id=act.event_id))
    if act.op.n >= 2:
        await clients.talk(act.name).interrupt(cancel_running=act.op.yes)


async def _resume(clients: _Clients, act: Act) -> None:
    await clients.talk(act.name).resume()


async def _terminate(clients: _Clients, act: Act) -> None:
    await clients.talk(act.name).terminate(cascade=act.op.yes)


async def _delete(clients: _Clients, act: Act) -> None:
    try:
        await clients.talk(act.name).delete(cascade=act.op.yes, timeout=DELETE_SECONDS)
    except WaitTimeout as error:  # of a child that cannot go on
        if not clients.play.suspends:
            raise
        act.error = error


async def _fork(clients: _Clients, act: Act) -> None:
    at = None
    if act.op.n:
        at = max(0, (await clients.client.get_conversation(act.name)).last_seq - act.op.n)
    await clients.make(act, act.name, act.op.do, _new(act), at=at, beside=True if act.op.yes else None)


async def _merge(clients: _Clients, act: Act) -> None:
    other = await clients._find(act.op.n)
    if ("/" in other) != ("/" in act.name):
        return
    await clients.make(act, act.name, "merge", other, into=_new(act), keep="left")


async def _compress(clients: _Clients, act: Act) -> None:
    await clients.make(act, act.name, "compress", into=_new(act), summarise=summarised)


async def _copy(clients: _Clients, act: Act) -> None:
    talk = clients.talk(act.name)
    waiting = await _waiting(talk)
    lines = [line async for line in talk.export()]
    export = Export.of(lines)
    lost = waiting - export.requests - export.revisits.keys()  # what was due may be there too
    assert not lost or waiting != await _waiting(talk), f"{act.name}: its export has lost {lost}"
    await clients.make(act, _new(act), "import_", lines, without={"delegations", "steps"} if act.op.yes else ())
    act.imported = export


async def _waiting(talk: Any) -> set[str]:
    """Ids of the requests, and keys of the revisits."""
    return {each.request_id for each in await talk.requests()} | {each.key for each in await talk.revisits()}


async def _again(clients: _Clients, act: Act) -> None:
    """What another call has made is as it was, and no other call makes it."""
    made = [each for each in clients.played.acts if each.call and not clients.has_removed(each.made)]
    if not made:
        return
    first = made[act.op.n % len(made)]
    on, method, args, options = first.call or ("", "", (), {})
    changes: dict[str, Any] = {"times": "now"} if first.imported else {"extras": {"other": True}}
    was = await clients.client.journals.lineage(first.made)
    error: AffinityError | None = None
    try:
        await getattr(clients.talk(on), method)(*args, **options, **({} if act.op.yes else changes))
    except EXPECTED["again"] as raised:
        error = raised
    if not clients.has_removed(first.made):
        assert act.op.yes or error, f"{first.made} has been made again, with {changes}"
        is_same = act.op.yes and (first.imported or options.get("at") is not None)
        is_refused = isinstance(error, ConversationExists) and not clients.has_removed(on)
        assert not (is_same and is_refused), f"the call that has made {first.made} is refused: {error}"
        now = await clients.client.journals.lineage(first.made)
        assert now[:1] == was[:1], f"{first.made} was {was[:1]}, and is {now[:1]}"


async def _prune(clients: _Clients, act: Act) -> None:
    await clients.client.prune_conversations(max_entries=act.op.n)


async def _move(clients: _Clients, act: Act) -> None:
    if (worker := clients.play.worker(act.op.n)) is not None:
        await clients.client.move_session(act.name, worker)


async def _release(clients: _Clients, act: Act) -> None:
    await clients.client.release_session(act.name)


async def _cancel(clients: _Clients, act: Act) -> None:
    await clients.client.cancel(act.name)


async def _remove(clients: _Clients, act: Act) -> None:
    await clients.client.delete(act.name, force=True)


async def _reset(clients: _Clients, act: Act) -> None:
    if count := len(await clients.client.history(act.name)):
        await clients.client.reset(act.name, to_event=max(1, count * act.op.n // 100))


async def _revive(clients: _Clients, act: Act) -> None:
    await clients.client.resume_many([act.name])


async def _forget(clients: _Clients, act: Act) -> None:
    await clients.client.session_manager.delete(act.name)


async def _describe(clients: _Clients, act: Act) -> None:
    await clients.talk(act.name).describe(**about(act.event_id))


async def _follow(clients: _Clients, act: Act) -> None:
    """Read until cancelled; another feed goes on from the position after each few items."""
    talk, feed = clients.talk(act.name), Feed(act.name)
    clients.played.feeds.append(feed)
    while True:
        try:
            left = act.op.n + 1
            async with talk.events(after=feed.position, follow=True) as events:
                async for item in events:
                    feed.items.append(item)
                    feed.position = events.position
                    left -= 1
                    if not left:
                        break
                else:
                    return  # the conversation has ended
        except (UnknownConversation, UnknownEntry) as error:
            feed = Feed(act.name, starts_late=isinstance(error, EntriesRemoved))
            clients.played.feeds.append(feed)
            await anyio.sleep(0.01)


async def _pause(clients: _Clients, act: Act) -> None:
    """Only the ticks behind it."""


CALLS: Final[dict[Do, Call]] = {
    "pause": _pause,
    "send": _send,
    "ask": _ask,
    "repeat": _repeat,
    "differ": _differ,
    "answer": _answer,
    "interrupt": _interrupt,
    "resume": _resume,
    "terminate": _terminate,
    "delete": _delete,
    "fork": _fork,
    "detach": _fork,
    "merge": _merge,
    "compress": _compress,
    "copy": _copy,
    "again": _again,
    "prune": _prune,
    "move": _move,
    "release": _release,
    "follow": _follow,
    "cancel": _cancel,
    "remove": _remove,
    "reset": _reset,
    "revive": _revive,
    "forget": _forget,
    "describe": _describe,
}


def _number(seq: int) -> EntryNumber:
    assert isinstance(seq, EntryNumber)
    return seq


def about(name: str) -> Description:
    """Owner and labels that tell where they come from."""
    return {"owner": f"owner of {name}", "labels": {"of": name}}


def _new(act: Act) -> str:
    """The id of what an act makes: it is of the kind of its source."""
    return f"{act.name}~{act.event_id}"


async def play_clients(play: Play, part: ConversationScript) -> Played:
    """Make the calls of all clients."""
    return await _Clients(play, part).run()


def act_of(call: TalkCall) -> Act:
    """A call of a handler, or of an activity, as one of a client that may make it again at any time."""
    waits = call.reply is not None or isinstance(call.error, WakeFailed)
    op = Op("ask" if waits else "send", steps=(*call.steps,))
    event = Script([*call.steps])
    return Act(op, call.name, 0, None, call.error, call.seq, event, call.event_id, call.reply)
