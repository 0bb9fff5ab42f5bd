"""The reasons for which an instance waits, most serious first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from affinity.errors import Explanation, ExplanationCode
from affinity.explain.names import ACTIVITIES, ORCHESTRATIONS, described, has_code, lacking
from affinity.explain.outstanding import Outstanding
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
)
from affinity.provider.history import history_pages

MAX_DEPTH: Final = 8
"""Instances in a path: each waits for the next."""

MAX_ITEMS: Final = 100
"""Children, or activities, of one instance that are read."""

_SHOWN: Final = 3
"""Other reasons in a sentence."""

_REMEDIES: Final = {
    "UnknownOrchestration": "start a worker that registers it",
    "Nondeterminism": "deploy code that fits its history, or reset it with `affinity reset`",
    "OrchestrationPoisoned": "correct what ends its workers, then `affinity resume {id}`",
    "ExecutionLimitReached": "reset it with `affinity reset`, or remove events, then `affinity resume {id}`",
}
_REMEDY: Final = "deploy code that can go on with it, or `affinity resume {id}`"

_URGENCY: Final[Sequence[ExplanationCode]] = (
    "name_not_registered",
    "no_worker_with_tag",
    "workers_draining",
    "workers_full",
    "holder_draining",
    "holder_restarting",
    "holder_lapsed",
    "ordered_behind",
    "session_moving",
    "holder_busy",
    "activity_retrying",
    "activity_delayed",
    "activity_queued",
    "activity_running",
)
"""The most serious reason first: it is named when an instance waits for several activities."""

_Reason: TypeAlias = tuple[ExplanationCode, str, dict[str, Any]]
"""A code, the sentence behind the id of the instance, and other fields of the explanation."""

Reasons: TypeAlias = "Callable[[Explainer, InstanceInfo, Outstanding], Awaitable[Explanation | None]]"
"""The reason for which an instance of a layer above waits; None: its history says it."""

_added: Final[list[Reasons]] = []


def add_reasons(reasons: Reasons) -> None:
    """Ask this function, too, why an instance waits that is neither suspended nor without a worker."""
    _added.append(reasons)


async def explain(provider: Provider, instance_id: str) -> Explanation | None:
    """The reason why an instance waits; None: it has ended, or there is none.

    Raises:
        ProviderError: the database does not answer.
    """
    return await Explainer(provider).explain(instance_id)


class Explainer:
    """Finds what an instance waits for. It reads the workers once."""

    def __init__(
        self, provider: Provider, path: tuple[str, ...] = (), workers: Sequence[WorkerInfo] | None = None
    ) -> None:
        self.provider = provider
        self.path: tuple[str, ...] = path
        self._workers = workers

    async def alive(self) -> Sequence[WorkerInfo]:
        """The live workers."""
        return [one for one in await self._known_workers() if one.alive and not one.restarting]

    async def _known_workers(self) -> Sequence[WorkerInfo]:
        if self._workers is None:
            self._workers = await self.provider.list_workers()
        return self._workers

    async def explain(self, instance_id: str) -> Explanation | None:
        """As `explain` of the module."""
        (info,) = await self.provider.get_instance([instance_id])
        if info is None or info.status in FINISHED:
            return None
        self.path = (*self.path, instance_id)
        if info.suspension is not None:
            return self._suspended(info)
        outstanding = await self._read_history(info)
        if not await self.alive():
            text = "waits for a worker: none is alive; start one"
            return self.reason("no_worker", text, {"name": info.name}, _other_waits(outstanding))
        for reasons in _added:
            if (found := await reasons(self, info, outstanding)) is not None:
                return found
        missing = await self._missing_code(info)
        if missing is not None:
            return self.reason(*missing, tail=_other_waits(outstanding))
        return await self._outstanding(info, outstanding)

    async def explain_child(
        self, instance_id: str, relation: str, status: str = "", *, text: str = ""
    ) -> Explanation | None:
        """What an instance waits for that the one in question waits for: ``relation`` is "sub-orchestration" or the
        like, and ``status`` stands behind its id; or ``text`` stands before it. None: it has ended, or it is too deep.
        """
        if len(self.path) >= MAX_DEPTH or instance_id in self.path:
            return None
        found = await Explainer(self.provider, self.path, await self._known_workers()).explain(instance_id)
        if found is None:
            return None
        text = text or f"waits for its {relation}"
        sentence = f"{self.path[-1]!r} {text} {instance_id!r}{status}: {found.sentence}"
        return replace(found, sentence=sentence)

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

    async def _missing_code(self, info: InstanceInfo) -> _Reason | None:
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
        if found.activities and (reason := await self.activity(tail=_other_waits(found, "activities"))) is not None:
            return reason
        if found.children and (
            reason := await self._child(list(found.children.values()), _other_waits(found, "children"))
        ):
            return reason
        if found.events:
            name = next(iter(found.events.values()))
            return self.reason("event", f"waits for the event {name!r}", {"name": name}, _other_waits(found, "events"))
        if found.timers:
            due = await self.next_timer(info, found.timers)
            text = "waits for a timer" + ("" if due is None else f", due at {time_text(due)}")
            return self.reason("timer", text, {"due_at": due})
        return self.reason("turn", "waits for a worker to run its next turn", {"worker_id": info.owner})

    async def next_timer(self, info: InstanceInfo, timers: Mapping[int, float]) -> datetime | None:
        """When the first of these timers is due; None: there is none, or that is not known."""
        if not timers:
            return None
        origins = await self.provider.read_origins(info.instance_id, info.execution_id)
        due = [at.recorded_at + timedelta(seconds=timers[at.event_id]) for at in origins if at.event_id in timers]
        return min(due, default=None)

    async def _child(self, ids: Sequence[str], tail: str) -> Explanation:
        """The child that is suspended, if one is; else the first that waits for something."""
        few = ids[:MAX_ITEMS]
        infos = [one for one in await self.provider.get_instance(few) if one is not None and one.status not in FINISHED]
        for one in sorted(infos, key=lambda one: one.suspension is None)[:1]:
            if (found := await self.explain_child(one.instance_id, "sub-orchestration")) is not None:
                return found
        return self.reason("child", f"waits for its sub-orchestration {ids[0]!r}", tail=tail)

    # -- activities

    async def activity(self, tail: str = "", called: str | None = None) -> Explanation | None:
        """Why the activities of this instance have no result yet; of several, the most serious reason. None: it has
        none in the queue. ``called``: what its only activity is, for people.
        """
        items = await self.provider.list_work_items(self.path[-1], MAX_ITEMS)
        found = [self.reason(*await self._item(one, called), tail=tail) for one in items]
        worst = min(found, key=lambda one: _URGENCY.index(one.code), default=None)
        if worst is None or worst.code != "activity_running":
            return worst
        return await self._awaited(called or f"the activity {worst.name!r}") or worst

    async def _awaited(self, what: str) -> Explanation | None:
        """What an activity that runs waits for; None: it has not noted that."""
        me, text = self.path[-1], f"waits for {what}, which waits for"
        awaited = [edge.awaited for edge in await self.provider.get_waits(me) if edge.instance_id == me]
        for instance_id in awaited:
            found = await self.explain_child(instance_id, "", text=text)
            if found is not None:
                return found
        for instance_id in awaited:
            circle = ", in a circle: the wait that began last is refused" if instance_id in self.path else ""
            return self.reason("activity_waits", f"{text} {instance_id!r}{circle}")
        return None

    async def _item(self, item: WorkItemInfo, called: str | None) -> _Reason:
        code, text, more = await self._why(item)
        failed = "" if item.last_error is None or code == "activity_retrying" else f" (after {item.last_error})"
        about = {"name": item.name, "activity_id": item.key.activity_id, "session_id": item.session_id}
        if item.state in {"waiting", "blocked"}:
            about["since"] = item.visible_at
        return code, f"waits for {called or f'the activity {item.name!r}'}, {text}{failed}", about | more

    async def _why(self, item: WorkItemInfo) -> _Reason:
        if item.state == "running":
            text = f"which runs on worker {item.worker_id!r}, attempt {item.attempts}"
            return "activity_running", text, {"worker_id": item.worker_id}
        able = [one for one in await self.alive() if has_code(one, ACTIVITIES, item.name)]
        match lacking(able, ACTIVITIES, item.name, None if item.has_worker else item.tag):
            case "name_not_registered":
                return "name_not_registered", "which no live worker registers: include it in the app of one", {}
            case "no_worker_with_tag":
                tag = item.tag
                text = f"which needs a worker with the tag {tag!r}: none is alive; start one with `--tag {tag}`"
                return "no_worker_with_tag", text, {}
        match item.state:
            case "blocked":
                return "ordered_behind", f"which is behind an ordered activity of session {item.session_id!r}", {}
            case "delayed":
                return _delayed(item)
        return await self._why_waiting(item, able)

    async def _why_waiting(self, item: WorkItemInfo, able: Sequence[WorkerInfo]) -> _Reason:
        """Why an activity that could be fetched now is not."""
        if item.tag is not None:
            able = [one for one in able if item.tag in one.tags]
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

    async def _why_held(self, session_id: str, activity: str) -> _Reason | None:
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
    slots = f"{holder.labels[SLOTS]} " if holder is not None and SLOTS in holder.labels else ""
    left = 0 if holder is None else _left_behind(holder)
    busy = f"code that ignores its cancellation has {left} of its {slots}slots" if left else ""
    text = f", which has not taken it yet: {busy or f'its {slots}slots (worker_concurrency) may be busy'}"
    return "holder_busy", text


def _left_behind(worker: WorkerInfo) -> int:
    """Its slots that code has that is left behind."""
    return int(worker.labels.get(LEFT_BEHIND, "0"))


def _delayed(item: WorkItemInfo) -> _Reason:
    at = {"due_at": item.visible_at}
    if not item.failures:
        return "activity_delayed", f"which no worker may take before {time_text(item.visible_at)}", at
    text = f"which failed with {item.last_error or 'an error'}; attempt {item.attempts + 1} is due at "
    return "activity_retrying", text + time_text(item.visible_at), at


def _other_waits(found: Outstanding, without: str = "") -> str:
    """The rest of what an instance waits for, in few words."""
    parts = [f"the activity {name!r}" for name in found.activities.values()] if without != "activities" else []
    if without not in {"activities", "children"}:
        parts += [f"the sub-orchestration {name!r}" for name in found.children.values()]
    names = list(found.events.values())
    parts += [f"the event {name!r}" for name in (names[1:] if without == "events" else names)]
    parts += ["a timer"] * bool(found.timers)
    if not parts:
        return ""
    more = f", and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return f"; it also waits for {', '.join(parts[:_SHOWN])}{more}"


def time_text(at: datetime) -> str:
    """An instant in a sentence."""
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")
