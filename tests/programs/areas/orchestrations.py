"""Orchestrations, activities and sessions: all statements, many concurrent instances that share sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import affinity
from affinity import Client
from affinity.limits import UNTAKEN_SECONDS
from affinity.orchestration import events as ev
from affinity.testing import Env
from tests.programs.acts import ACTS, Act, Drain, Player, Seen, start_of
from tests.programs.alone import check_runs
from tests.programs.area import Area
from tests.programs.bodies import INSTANCES, JOBS, SESSIONS, Job
from tests.programs.histories import Past, read_pasts
from tests.programs.interpreter import app, sessions
from tests.programs.names import LABELS, NAME, session_id
from tests.programs.oracle import Oracle, check_room, ended_marks
from tests.programs.play import Play
from tests.programs.program import Size
from tests.programs.slots import ROOM, WAITING, open_all, until_declared
from tests.programs.tables import read_tables

_FROM_OUTSIDE: Final = (ev.EventAwaited, ev.SubOrchestrationScheduled)
REASONS: Final[Mapping[str, tuple[type[ev.Event], ...]]] = {
    "event": _FROM_OUTSIDE,
    "session_move": _FROM_OUTSIDE,
    "no_worker_with_tag": (*_FROM_OUTSIDE, ev.ActivityScheduled),
    "limited": (*_FROM_OUTSIDE, ev.ActivityScheduled),
}
"""For which an instance may still wait at rest, and the commands that may be without an answer then."""


COPIES: Final[Mapping[Size, Sequence[int]]] = {"small": (1,), "any": (1, 5, 10, 20), "large": (20, 50, 100)}


@dataclass(frozen=True)
class OrchestrationsPart:
    jobs: tuple[Job, ...] = (Job(),)
    clients: tuple[tuple[Act, ...], ...] = ()
    copies: int = 1  # of the jobs: so many instances have each

    @property
    def instances(self) -> tuple[Job, ...]:
        """The job of each instance that is started."""
        return self.jobs * self.copies


class Orchestrations(Area[OrchestrationsPart, Seen]):
    name = NAME

    def strategy(self, size: Size) -> SearchStrategy[OrchestrationsPart]:
        jobs, clients, acts = (2, 1, 3) if size == "small" else (INSTANCES, 3, 10)
        return st.builds(
            OrchestrationsPart,
            jobs=st.lists(JOBS, min_size=1, max_size=jobs).map(tuple),
            clients=st.lists(st.lists(ACTS, max_size=acts).map(tuple), max_size=clients).map(tuple),
            copies=st.sampled_from(COPIES[size]),
        )

    def include(self, app_: affinity.App) -> None:
        app_.include(app)

    async def run(self, play: Play, part: OrchestrationsPart) -> Seen:
        seen = Seen(has_faults=play.has_faults)
        if any(job.limited for job in part.jobs):
            await until_declared(play.env.client.limits, [ROOM], partial(play.pause, 1))
        await play.env.client.start_many([start_of(number, job) for number, job in enumerate(part.instances)])
        async with anyio.create_task_group() as tasks:
            for number, acts in enumerate(part.clients):
                tasks.start_soon(Player(play, part.instances, seen, number).run, acts)
        seen.opened_at = play.env.now()
        await open_all(play.env.client.limits)
        return seen

    async def check(self, play: Play, part: OrchestrationsPart, seen: Seen) -> None:
        await _lend_slots(play.env)
        pasts = await read_pasts(play.env.client, f"{NAME}.body")
        definition = app.find_orchestration(f"{NAME}.body")
        assert definition is not None
        for past in pasts.values():
            check_runs(past, definition)
        await _check_listings(play.env.client, pasts)
        called = play.calls
        seen.sent |= {data: (to, 0) for data, to in called.delivered.items()}
        seen.replies |= called.replies
        seen.asked |= called.asked
        seen.attempts |= called.attempts
        if not play.has_faults:
            rates = not any(isinstance(act, Drain) for acts in part.clients for act in acts)
            seen.crowded += called.begun.violations(set(ended_marks(pasts.values())), rates=rates)
        Oracle(pasts, await _states(play), seen, len(part.instances)).check()
        check_room(pasts, part.instances, seen)
        for past in pasts.values():
            if not past.has_ended:
                await _check_reason(play, past)


async def _lend_slots(env: Env) -> None:
    """Let work with a tag that no worker has lend its slots, for which an env at rest does not wait, until all work
    without a tag has run.
    """
    for _ in range(MOST_LENT):
        rows = (await read_tables(env)).rows["worker_queue"]
        if not any(row["route"] in WAITING and row["tag"] is None for row in rows) or not env.workers:
            return
        await env.advance(UNTAKEN_SECONDS + 1)


async def _check_listings(client: Client, pasts: Mapping[str, Past]) -> None:
    """Listings and counts by labels have the instances that have them, in the order of all, also up to a bound."""
    name = f"{NAME}.body"
    everything = [each.instance_id for each in await client.list_instances(name=name)]
    assert sorted(everything) == sorted(pasts), f"listed are {everything}, and there are {sorted(pasts)}"
    for labels in LABELS[1:]:
        wanted = [each for each in everything if labels.items() <= dict(pasts[each].info.labels).items()]
        found = [each.instance_id for each in await client.list_instances(labels=labels, name=name)]
        assert found == wanted, f"by {labels}: {found}, not {wanted}"
        oldest = [each.instance_id for each in await client.list_instances(labels=labels, sort="started", most=3)]
        assert oldest == wanted[::-1][:3], f"the first three by {labels}: {oldest}, of {wanted[::-1]}"
        statuses = Counter(pasts[each].info.status for each in wanted)
        counted = await client.count_instances(labels=labels, name=name)
        assert dict(counted) == dict(statuses), f"by {labels}: {counted}, not {statuses}"
        ours = Counter(pasts[each].info.status for each in wanted if each.startswith(f"{NAME}-"))
        by_id = await client.count_instances(labels=labels, prefix=f"{NAME}-")
        assert dict(by_id) == dict(ours), f"by {labels} and id: {by_id}, not {ours}"


MOST_LENT: Final = 100
"""Times that work lends its slots, at most."""


async def _states(play: Play) -> Mapping[str, Sequence[str]]:
    found = {}
    for number in range(SESSIONS):
        name = session_id(number)
        if await play.env.client.session_store.load(name) is not None:
            async with sessions.open(name, store=play.env.client.session_store) as kept:
                found[name] = list(kept.marks)
    return found


async def _check_reason(play: Play, past: Past) -> None:
    """An instance at rest waits for an event of a client, and `affinity.explain` says so."""
    found = await play.env.client.explain(past.id)
    code = None if found is None else found.code
    assert code in REASONS, f"{past.id} waits at rest: {found}"
    allowed = REASONS[code or ""]
    waits = past.last.open_commands()
    assert waits, f"{past.id} waits at rest for nothing: {found}"
    wrong = [event for event in waits.values() if not isinstance(event, allowed)]
    assert not wrong, f"{past.id} waits at rest for {wrong}: {found}"
    if code == "limited":  # as others of this tag, each of which lends its slot
        untagged = [event for event in waits.values() if isinstance(event, ev.ActivityScheduled) and not event.tag]
        assert not untagged, f"{past.id} waits at rest for {untagged}: {found}"


ORCHESTRATIONS: Final = Orchestrations()
