"""The reasons for which an instance waits, most serious first.

A sentence begins with its *leaf*: the deepest reason that is known, of the instance that has it. Then come the other
waits of that instance, and which instances wait for it:

    'order-7/pay' waits for the event 'approved'; an event 'aproved' lies unread; 'order-7' waits for its
    sub-orchestration 'order-7/pay', and also for 2 activities 'pack'

Of several waits of one instance the most serious is followed (`_URGENCY`), to a bounded number of instances.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from affinity.errors import Explanation, ExplanationCode
from affinity.explain.names import ACTIVITIES, ORCHESTRATIONS, described, has_code, lacking
from affinity.explain.outstanding import Outstanding
from affinity.explain.words import (
    counted,
    duration,
    event_words,
    list_of,
    other_waits,
    time_text,
    unread_words,
)
from affinity.orchestration.waits import watched_session
from affinity.provider.contract import (
    FINISHED,
    LEFT_BEHIND,
    SLOTS,
    HistoryCursor,
    HistoryPage,
    InstanceInfo,
    Provider,
    SessionInfo,
    WorkerInfo,
    WorkItemInfo,
    WorkKey,
    has_tag,
)
from affinity.provider.history import history_pages

MAX_DEPTH: Final = 16
"""Instances in a path: each waits for the next."""

MAX_EXPLAINED: Final = 40
"""Instances whose reasons are looked for, for one sentence."""

MAX_CHILDREN: Final = 10
"""Children of one instance whose reasons are looked for; those that are suspended first."""

MAX_ITEMS: Final = 100
"""Children, or activities, of one instance that are read."""

_REMEDIES: Final = {
    "UnknownOrchestration": "start a worker that registers it",
    "Nondeterminism": "deploy code that fits its history, or reset it with `affinity reset`",
    "OrchestrationPoisoned": "correct what ends its workers, then `affinity resume {id}`",
    "ExecutionLimitReached": "reset it with `affinity reset`, or remove events, then `affinity resume {id}`",
}
_REMEDY: Final = "deploy code that can go on with it, or `affinity resume {id}`"

_URGENCY: Final[Sequence[ExplanationCode]] = (
    "suspended",
    "wake_failed",
    "no_worker",
    "name_not_registered",
    "no_worker_with_tag",
    "limit_paused",
    "limit_closed",
    "limited",
    "workers_draining",
    "workers_full",
    "holder_draining",
    "holder_restarting",
    "holder_lapsed",
    "ordered_behind",
    "session_moving",
    "holder_busy",
    "activity_retrying",
    "wake_retrying",
    "activity_delayed",
    "activity_queued",
    "request",
    "activity_waits",
    "activity_running",
    "child",
    "event",
    "session_move",
    "timer",
    "revisit",
    "start_delayed",
    "start_queued",
    "turn",
    "input",
)
"""The most serious reason first: it is named when an instance has several."""

Reason: TypeAlias = tuple[ExplanationCode, str, dict[str, Any]]
"""A code, the sentence behind the id of the instance, and other fields of the explanation."""

Reasons: TypeAlias = "Callable[[Explainer, InstanceInfo, Outstanding], Awaitable[Explanation | None]]"
"""The reason for which an instance of a layer above waits; None: its history says it."""

GateReasons: TypeAlias = Callable[[Provider, Collection[WorkKey]], Awaitable[Mapping[WorkKey, Reason]]]
"""The reasons why work items wait at their gates."""

_added: Final[list[Reasons]] = []
_of_gates: Final[list[GateReasons]] = []


def add_reasons(reasons: Reasons) -> None:
    """Ask this function, too, why an instance waits that is neither suspended nor without a worker."""
    _added.append(reasons)


def add_gate_reasons(reasons: GateReasons) -> None:
    """Ask this function why work items wait at their gates: the guest that opens gates knows."""
    _of_gates.append(reasons)


async def explain(provider: Provider, instance_id: str, *, queued: bool = False) -> Explanation | None:
    """The reason why an instance waits; None: it has ended, or there is none. ``queued``: the reason of the start that
    begins when the present run of the instance has ended, if there is such a start.

    Raises:
        ProviderError: the database does not answer.
    """
    search = _Search()
    found = await Explainer(provider, search=search).explain(instance_id, queued=queued)
    return None if found is None else replace(found, sentence=search.say(found))


class _Link(NamedTuple):
    """How an instance waits for another one."""

    text: str
    others: Sequence[str]  # what else it waits for


@dataclass(slots=True)
class _Search:
    """What the explainers of one call share."""

    workers: Sequence[WorkerInfo] | None = None  # once they are read
    left: int = MAX_EXPLAINED
    links: dict[tuple[str, str], _Link] = field(default_factory=dict)  # from an instance to one that it waits for
    ends: str = ""  # what the sentence ends with

    def say(self, found: Explanation) -> str:
        """The sentence of the leaf, and how the instance in question comes to wait for it."""
        text = found.sentence
        if len(found.path) > 1:
            first, second, *others = found.path
            through = f" through {counted(len(others) - 1, 'more', 'more')}" if len(others) > 1 else ""
            link = self.links[first, second]
            also = f", and also for {list_of(link.others)}" if link.others else ""
            text += f"; {first!r} {link.text}{f', which waits for it{through}' if others else ''}{also}"
        return text + self.ends


class Explainer:
    """Finds what an instance waits for. It reads the workers once."""

    def __init__(self, provider: Provider, path: tuple[str, ...] = (), *, search: _Search | None = None) -> None:
        self.provider = provider
        self.path: tuple[str, ...] = path
        self._search = search or _Search()

    async def alive(self) -> Sequence[WorkerInfo]:
        """The live workers."""
        return [one for one in await self._known_workers() if one.alive and not one.restarting]

    async def _known_workers(self) -> Sequence[WorkerInfo]:
        if self._search.workers is None:
            self._search.workers = await self.provider.list_workers()
        return self._search.workers

    async def explain(self, instance_id: str, *, queued: bool = False) -> Explanation | None:
        """The leaf, which `explain` of the module makes a sentence of."""
        (info,) = await self.provider.get_instance([instance_id])
        if info is None:
            return None
        self.path = (*self.path, instance_id)
        if info.status in FINISHED:
            text = "waits to begin: the run before it has ended, and the next sweep of a worker begins it"
            return None if info.next is None else self.reason("start_queued", text, {"name": info.name})
        found = await self._explain_run(info)
        if found is None or info.next is None:
            return found
        if len(self.path) == 1:
            whose = f"the next start of {instance_id!r}" if queued else "a start"
            self._search.ends = f"; {whose} waits for the end of this run"
        return replace(found, code="start_queued") if queued else found

    async def _explain_run(self, info: InstanceInfo) -> Explanation | None:
        """Why an instance waits that has not ended."""
        if info.suspension is not None:
            return self._suspended(info)
        outstanding = await self._read_history(info)
        if not await self.alive():
            text = "waits for a worker: none is alive; start one"
            return self.reason("no_worker", text, {"name": info.name}, await self._others(info, outstanding))
        for reasons in _added:
            if (found := await reasons(self, info, outstanding)) is not None:
                return found
        missing = await self._missing_code(info)
        if missing is not None:
            return self.reason(*missing, tail=await self._others(info, outstanding))
        return await self._outstanding(info, outstanding)

    async def explain_child(
        self, instance_id: str, relation: str, status: str = "", *, text: str = "", others: Sequence[str] = ()
    ) -> Explanation | None:
        """What an instance waits for that the one in question waits for: ``relation`` is "sub-orchestration" or the
        like, and ``status`` stands behind its id; or ``text`` stands before it. ``others``: what else the one in
        question waits for. None: it has ended, or it is too deep.
        """
        if len(self.path) >= MAX_DEPTH or instance_id in self.path or self._search.left <= 0:
            return None
        self._search.left -= 1
        found = await Explainer(self.provider, self.path, search=self._search).explain(instance_id)
        if found is None:
            return None
        link = f"{text or f'waits for its {relation}'} {instance_id!r}{status}"
        self._search.links[self.path[-1], instance_id] = _Link(link, others)
        return found

    def reason(
        self, code: ExplanationCode, text: str, fields: dict[str, Any] | None = None, tail: str = ""
    ) -> Explanation:
        """The explanation of this instance: ``text`` goes on after its id."""
        me = self.path[-1]
        return Explanation(code=code, sentence=f"{me!r} {text}{tail}", instance_id=me, path=self.path, **(fields or {}))

    # -- the instance

    def _suspended(self, info: InstanceInfo) -> Explanation:
        why = info.suspension
        assert why is not None
        remedy = _REMEDIES.get(why.error_type, _REMEDY).format(id=info.instance_id)
        text = f"is suspended since {time_text(why.at)} ({why.error_type}: {why.message}): {remedy}"
        return self.reason("suspended", text, {"name": info.name, "worker_id": why.worker_id})

    async def _missing_code(self, info: InstanceInfo) -> Reason | None:
        """No live worker has its code."""
        label = info.name if info.version is None else f"{info.name}@{info.version}"
        if not any(has_code(one, ORCHESTRATIONS, label) for one in await self.alive()):
            what = described(ORCHESTRATIONS, label)
            text = f"waits for a worker that registers the {what}: no live worker does; include it in the app of one"
            return "name_not_registered", text, {"name": label}
        return None

    async def _read_history(self, info: InstanceInfo) -> Outstanding:
        found = Outstanding()
        async for texts in history_pages(self._read_page, HistoryCursor(info.instance_id, info.execution_id)):
            found.read(texts)
        return found

    async def _read_page(self, at: HistoryCursor) -> HistoryPage:
        (page,) = await self.provider.read_history([at])
        return page

    async def _outstanding(self, info: InstanceInfo, found: Outstanding) -> Explanation:
        items = await self._items() if found.activities else []
        activity = None if not items else await self._activity(items, info=info, found=found)
        child = await self._child(info, found, items) if found.children else None
        both = [each for each in (activity, child) if each is not None]
        if both:
            return min(both, key=_urgency)
        if found.events:
            return await self._event(info, found)
        if found.timers:
            due = await self.next_timer(info, found.timers)
            text = "waits for a timer" + ("" if due is None else f", due at {time_text(due)}")
            return self.reason("timer", text, {"due_at": due})
        if info.starts_at is not None and info.starts_at > datetime.now(UTC):
            text = f"waits to begin at {time_text(info.starts_at)}"
            return self.reason("start_delayed", text, {"name": info.name, "due_at": info.starts_at})
        return self.reason("turn", "waits for a worker to run its next turn", {"worker_id": info.owner})

    async def _others(self, info: InstanceInfo, found: Outstanding, **about: Any) -> str:
        """The end of a sentence: what else the instance waits for, beside what the sentence is ``about``."""
        activities = about.pop("activities", found.activities.values())
        timers = await self._timers(info, found)
        parts = other_waits(found, activities=activities, timers=timers, **about)
        return f"; it also waits for {list_of(parts)}" if parts else ""

    async def _timers(self, info: InstanceInfo, found: Outstanding) -> str:
        due = await self.next_timer(info, found.timers)
        number = "a timer" if len(found.timers) == 1 else f"{len(found.timers)} timers"
        return number if due is None else f"{number}, due at {time_text(due)}"

    async def _event(self, info: InstanceInfo, found: Outstanding) -> Explanation:
        """The first event that it waits for: of the application, or of a session that it watches."""
        number, name = min(found.events.items())
        others = await self._others(info, found, event=number)
        watched = watched_session(name)
        if watched is not None:
            session = next(iter(await self.provider.list_sessions([watched])), None)
            holder = session.worker_id if session is not None and session.held else None
            now = f"worker {holder!r} holds it" if holder else "no worker holds it"
            about = {"session_id": watched, "worker_id": holder}
            return self.reason("session_move", f"waits for {event_words(name)}: {now}", about, others)
        hold, about = await self._hold(found.holds.get(number))
        text = f"waits for {event_words(name)}{hold}"
        return self.reason("event", text, {"name": name, **about}, unread_words(found, name) + others)

    async def _hold(self, session_id: str | None) -> tuple[str, dict[str, Any]]:
        """The hold that a wait has on a session, in words, and the fields of the explanation."""
        if session_id is None:
            return "", {}
        me = self.path[-1]
        ends = [
            use.until
            for use in await self.provider.list_session_uses(session_id)
            if use.kind == "hold" and use.instance_id == me and use.until is not None
        ]
        if not ends:
            return f"; its hold of session {session_id!r} has ended", {"session_id": session_id}
        session = next(iter(await self.provider.list_sessions([session_id])), None)
        holder = session.worker_id if session is not None and session.held else None
        where = f" on worker {holder!r}" if holder else ", which no worker has"
        text = f", and holds session {session_id!r}{where} until {time_text(max(ends))} at the latest"
        return text, {"session_id": session_id, "worker_id": holder}

    async def next_timer(self, info: InstanceInfo, timers: Mapping[int, float]) -> datetime | None:
        """When the first of these timers is due; None: there is none, or that is not known."""
        if not timers:
            return None
        origins = await self.provider.read_origins(info.instance_id, info.execution_id)
        due = [at.recorded_at + timedelta(seconds=timers[at.event_id]) for at in origins if at.event_id in timers]
        return min(due, default=None)

    async def _child(self, info: InstanceInfo, found: Outstanding, items: Sequence[WorkItemInfo]) -> Explanation | None:
        """The child with the most serious reason, as far as they are read; None: they have ended, and the instance is
        to run.
        """
        ids = list(found.children.values())
        infos = await self.provider.get_instance(ids[:MAX_ITEMS])
        waiting = [each for each in infos if each is not None and each.status not in FINISHED]
        timers = await self._timers(info, found) if found.timers else None
        activities = _names(found, items)
        best: Explanation | None = None
        for child in sorted(waiting, key=lambda each: each.suspension is None)[:MAX_CHILDREN]:
            others = other_waits(found, activities=activities, child=child.instance_id, timers=timers)
            reason = await self.explain_child(child.instance_id, "sub-orchestration", others=others)
            if reason is not None and (best is None or _urgency(reason) < _urgency(best)):
                best = reason
            if best is not None and best.code == "suspended":
                break
        if best is None and (waiting or len(ids) > MAX_ITEMS):
            first = waiting[0].instance_id if waiting else ids[0]
            tail = await self._others(info, found, activities=activities, child=first)
            return self.reason("child", f"waits for its sub-orchestration {first!r}", tail=tail)
        return best

    # -- activities

    async def activity(self, called: str) -> Explanation | None:
        """Why the only activity of this instance has no result yet; None: it has none in the queue. ``called``: what it
        is, for people.
        """
        items = await self._items()
        return await self._activity(items, called) if items else None

    async def _items(self) -> Sequence[WorkItemInfo]:
        return await self.provider.list_work_items(self.path[-1], MAX_ITEMS)

    async def _activity(
        self,
        items: Sequence[WorkItemInfo],
        called: str | None = None,
        *,
        info: InstanceInfo | None = None,
        found: Outstanding | None = None,
    ) -> Explanation:
        """The most serious reason of these activities; of several, that of the activity that has it for longest.
        ``info`` and ``found``: of the instance, which may wait for more.
        """
        at_gates = await self._at_gates([item.key for item in items if item.state == "limited"])
        reasons = [(await self._item(item, called, at_gates), item) for item in items]
        (code, text, fields), item = min(reasons, key=lambda each: (_URGENCY.index(each[0][0]), -each[1].age))
        tail, others = "", list[str]()
        if info is not None and found is not None:
            timers = await self._timers(info, found) if found.timers else None
            names = _names(found, items, without=item)
            others = list(other_waits(found, activities=names, activity=item.name, timers=timers))
            tail = f"; it also waits for {list_of(others)}" if others else ""
        if code == "activity_running":
            running = {each.name for each in items if each.state == "running"}
            what = called or (f"the activity {item.name!r}" if len(running) == 1 else "an activity")
            if (awaited := await self._awaited(what, others)) is not None:
                return awaited
        return self.reason(code, text, fields, tail)

    async def _awaited(self, what: str, others: Sequence[str]) -> Explanation | None:
        """What an activity that runs waits for; None: it has not noted that."""
        me, text = self.path[-1], f"waits for {what}, which waits for"
        awaited = [edge.awaited for edge in await self.provider.get_waits(me) if edge.instance_id == me]
        for instance_id in awaited:
            found = await self.explain_child(instance_id, "", text=text, others=others)
            if found is not None:
                return found
        for instance_id in awaited:
            circle = ", in a circle: the wait that began last is refused" if instance_id in self.path else ""
            return self.reason("activity_waits", f"{text} {instance_id!r}{circle}")
        return None

    async def _at_gates(self, keys: Collection[WorkKey]) -> Mapping[WorkKey, Reason]:
        """Return why these items wait at their gates, as far as that is known."""
        found: dict[WorkKey, Reason] = {}
        for reasons in _of_gates if keys else ():
            found |= await reasons(self.provider, keys)
        return found

    async def _item(self, item: WorkItemInfo, called: str | None, at_gates: Mapping[WorkKey, Reason]) -> Reason:
        if item.state == "limited":  # it may have been admitted since it was read, or pauses: no worker has taken it
            waits: Reason = ("limited", "which waits for a place at its limits", {})
            code, text, more = at_gates.get(item.key) or await self._missing_for(item) or waits
        else:
            code, text, more = await self._why(item)
        failed = "" if item.last_error is None or code == "activity_retrying" else f" (after {item.last_error})"
        about = {"name": item.name, "activity_id": item.key.activity_id, "session_id": item.session_id}
        waited = ""
        if item.state in {"waiting", "blocked", "limited"}:
            about["since"], waited = item.visible_at, f" (for {duration(item.age)})"
        elif item.state == "running":
            about["since"] = item.started_at
        return code, f"waits for {called or f'the activity {item.name!r}'}, {text}{failed}{waited}", about | more

    async def _why(self, item: WorkItemInfo) -> Reason:
        if item.state == "running":
            text = f"which runs on worker {item.worker_id!r} for {duration(item.age)}, attempt {item.attempts}"
            return "activity_running", text, {"worker_id": item.worker_id}
        if (found := await self._missing_for(item)) is not None:
            return found
        match item.state:
            case "blocked":
                return "ordered_behind", f"which is behind an ordered activity of session {item.session_id!r}", {}
            case "delayed":
                return _delayed(item)
        return await self._why_waiting(item)

    async def _able(self, item: WorkItemInfo) -> Sequence[WorkerInfo]:
        """The live workers that have code for an activity."""
        return [one for one in await self.alive() if has_code(one, ACTIVITIES, item.name)]

    async def _missing_for(self, item: WorkItemInfo) -> Reason | None:
        """The code or the tag of an activity that no live worker has."""
        match lacking(await self._able(item), ACTIVITIES, item.name, None if item.has_worker else item.tag):
            case "name_not_registered":
                return "name_not_registered", "which no live worker registers: include it in the app of one", {}
            case "no_worker_with_tag":
                tag = item.tag
                text = f"which needs a worker with the tag {tag!r}: none is alive; start one with `--tag {tag}`"
                return "no_worker_with_tag", text, {}
        return None

    async def _why_waiting(self, item: WorkItemInfo) -> Reason:
        """Why an activity that could be fetched now is not."""
        able = await self._able(item)
        if item.tag is not None:
            able = [one for one in able if has_tag(one.tags, item.tag)]
        else:
            able = [one for one in able if not one.only_tagged] or able
        if item.session_id is not None and (found := await self._why_held(item.session_id, item.name)) is not None:
            return found
        taking = [one for one in able if not one.draining]
        if able and not taking:
            return "workers_draining", "which no worker takes: all that could take it drain", {}
        full = [one for one in taking if one.sessions >= one.capacity]
        if item.session_id is not None and taking and len(full) == len(taking):
            text = f"whose session {item.session_id!r} no worker takes: all hold as many as max_sessions_per_runtime"
            return "workers_full", text, {}
        if taking and all(_left_behind(one) >= int(one.labels.get(SLOTS, "0")) > 0 for one in taking):
            text = "which no worker takes: code that ignores its cancellation has all their slots; start them again"
            return "activity_queued", text, {}
        return "activity_queued", "which no worker has taken yet", {}

    async def _why_held(self, session_id: str, activity: str) -> Reason | None:
        """Why the holder of the session has not taken its work; None: it has no holder."""
        session = next(iter(await self.provider.list_sessions([session_id])), None)
        if session is None or not session.worker_id:
            return None
        workers = await self._known_workers()
        holder = next((one for one in workers if one.alive and one.worker_id == session.worker_id), None)
        if not session.held and (holder is not None or session.expires_in <= 0):
            return None
        code, text = _holding(session, holder, activity)
        text = f"whose session {session_id!r} is held by worker {session.worker_id!r}{text}"
        return code, text, {"worker_id": session.worker_id}


def _holding(session: SessionInfo, holder: WorkerInfo | None, activity: str) -> tuple[ExplanationCode, str]:
    if not session.held:
        return "holder_lapsed", ", whose lease has ended; another worker takes it"
    if session.next_worker is not None:
        return "session_moving", f" and moves to worker {session.next_worker!r} as its work ends"
    if holder is not None and holder.restarting:
        return "holder_restarting", ", which has left for a restart, and takes it when it is back"
    if holder is not None and holder.draining:
        return "holder_draining", ", which drains"
    if holder is not None and not has_code(holder, ACTIVITIES, activity):
        return "session_moving", ", which does not register the activity, and gives the session up as its work ends"
    slots = "slots" if holder is None or SLOTS not in holder.labels else counted(int(holder.labels[SLOTS]), "slot")
    left = 0 if holder is None else _left_behind(holder)
    busy = f"code that ignores its cancellation has {left} of its {slots}" if left else ""
    text = f", which has not taken it yet: {busy or f'its {slots} (worker_concurrency) may be busy'}"
    return "holder_busy", text


def _left_behind(worker: WorkerInfo) -> int:
    """Its slots that code has that is left behind."""
    return int(worker.labels.get(LEFT_BEHIND, "0"))


def _delayed(item: WorkItemInfo) -> Reason:
    at, due = {"due_at": item.visible_at}, f"{time_text(item.visible_at)} (in {duration(-item.age)})"
    if not item.failures:
        return "activity_delayed", f"which no worker may take before {due}", at
    text = f"which failed with {item.last_error or 'an error'}; attempt {item.attempts + 1} is due at {due}"
    return "activity_retrying", text, at


def _urgency(found: Explanation) -> int:
    return _URGENCY.index(found.code)


def _names(found: Outstanding, items: Sequence[WorkItemInfo], without: WorkItemInfo | None = None) -> list[str]:
    """The names of the activities that have not ended: of those in the queue, or, if there are more than are read, of
    those in the history.
    """
    if len(items) < MAX_ITEMS:
        return [each.name for each in items if each is not without]
    names = list(found.activities.values())
    if without is not None and without.name in names:
        names.remove(without.name)
    return names
