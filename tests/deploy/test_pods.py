"""The pod template as processes, under load: its environment, command, hooks, signals and grace period."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from affinity import Client, migrate
from tests.deploy.kustomize import DEPLOY, build
from tests.deploy.load import FOLDER, Count, Served, go_on, read_served
from tests.deploy.pods import Pod

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

SESSIONS = 12
PATIENCE = 90.0


@pytest.fixture
def postgres_age() -> str:
    """One version will do."""
    return "new"


class Workload:
    """The StatefulSet of an overlay: pods by their ordinals."""

    def __init__(self, overlay: str, url: str, place: Path, **different: str) -> None:
        self._manifests = build(DEPLOY / "overlays" / overlay)
        self._place = place
        self._secrets = {("affinity-database", "url"): url}
        self._different = {FOLDER: str(place), "AFFINITY_METRICS_PORT": "0", **different}
        self.pods: list[Pod] = []

    def start(self, ordinal: int) -> None:
        """The pod of that ordinal."""
        name = f"affinity-workers-{ordinal}"
        log = self._place / f"{name}.log"
        pod = Pod(self._manifests, name, log, app="tests.deploy.load:app", secrets=self._secrets, **self._different)
        self.pods[ordinal : ordinal + 1] = [pod]

    async def scale(self, replicas: int) -> None:
        """As the controller does with `podManagementPolicy: Parallel`: the highest ordinals end, all together."""
        for ordinal in range(len(self.pods), replicas):
            self.start(ordinal)
        leaving, self.pods = self.pods[replicas:], self.pods[:replicas]
        await self._end(leaving)

    async def restart(self, ordinal: int) -> None:
        """End a pod, and start its successor of the same name."""
        await self._end([self.pods[ordinal]])
        self.start(ordinal)

    async def _end(self, leaving: Sequence[Pod]) -> None:
        """None of them needs SIGKILL, nor more than its exit code 0."""
        async with anyio.create_task_group() as group:
            for pod in leaving:
                group.start_soon(to_thread.run_sync, self._end_one, pod)

    @staticmethod
    def _end_one(pod: Pod) -> None:
        assert pod.end_stop(pod.begin_stop()) == 0, pod.log()

    def end(self) -> None:
        for pod in self.pods:
            pod.kill()


class Load:
    """Sessions that go on and on."""

    def __init__(self, client: Client, place: Path) -> None:
        self._client = client
        self._place = place
        self._sessions: list[str] = []

    async def start(self, sessions: int = SESSIONS) -> None:
        """So many more sessions."""
        for _ in range(sessions):
            self._sessions.append(session := f"session-{len(self._sessions)}")
            await self._client.start(go_on, session, instance_id=session)

    async def until(self, is_so: Callable[[Sequence[Served]], bool]) -> None:
        """What was served so far is as wanted."""
        with anyio.fail_after(PATIENCE):
            while not is_so(read_served(self._place)):
                await anyio.sleep(0.1)

    async def goes_on(self) -> None:
        """Each session is served three more times, from now on."""
        before = len(read_served(self._place))
        await self.until(lambda all_: all(serves(all_[before:], session) >= 3 for session in self._sessions))

    async def end(self) -> list[Served]:
        """Stop the sessions and check what became of them: every turn has one result, and is in the state once, in
        order; no turn was served twice; and no session had two holders at a time.
        """
        (self._place / "stop").touch()
        store = self._client.session_store
        for session in self._sessions:
            turns = await self._client.wait(session, timeout=PATIENCE)
            record = await store.load(session)
            assert record is not None
            assert Count.model_validate_json(record.state).turns == list(range(1, turns + 1))
        served = read_served(self._place)
        for session in self._sessions:
            check_holders([one for one in served if one.session == session])
        return served


def serves(all_: Sequence[Served], session: str) -> int:
    return sum(one.session == session for one in all_)


def check_holders(served: Sequence[Served]) -> None:
    """One session: no turn twice, one holder at a time, each with a greater epoch."""
    turns = sorted(one.turn for one in served)
    assert turns == list(range(1, len(turns) + 1))
    in_order = sorted(served, key=lambda one: one.began)
    for before, after in pairwise(in_order):
        assert before.ended <= after.began
        assert before.epoch <= after.epoch
        assert (before.epoch == after.epoch) <= (before.worker == after.worker)


def moves(served: Sequence[Served]) -> list[int]:
    """How often each session changed its holder, a new start of the same name included."""
    return [
        len({one.epoch for one in served if one.session == session}) - 1 for session in {one.session for one in served}
    ]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "load"
    place.mkdir()
    return place


@pytest.fixture
def workload(postgres_database: str, place: Path) -> Iterator[Callable[..., Workload]]:
    """The pods of an overlay."""
    made: list[Workload] = []

    def make(overlay: str, **different: str) -> Workload:
        made.append(Workload(overlay, postgres_database, place, **different))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            each.end()


@pytest.fixture
async def client(postgres_database: str) -> AsyncIterator[Client]:
    await migrate(postgres_database)
    async with Client(postgres_database) as client:
        yield client


@pytest.mark.first
@pytest.mark.slow
async def test_autoscaling_loses_and_doubles_nothing(
    workload: Callable[..., Workload], client: Client, place: Path
) -> None:
    """From two pods to four, to one, and to two, while two have room for all sessions. The sessions are packed:
    a pod that is not needed has none, and the sessions of the needed one go to its next start.
    """
    half = SESSIONS // 2
    pods, load = workload("autoscaled", AFFINITY_MAX_SESSIONS_PER_RUNTIME=str(half)), Load(client, place)
    await pods.scale(2)
    await registered(client, 2)
    await load.start(half)
    await load.goes_on()
    await pods.scale(4)
    await registered(client, 4)
    await load.start(half)
    await load.goes_on()
    demand = await client.desired_workers()
    assert (demand.held, demand.desired) == (SESSIONS, 2)
    held = {row.worker_id: row.sessions for row in await client.workers()}
    assert held == {f"affinity-workers-{n}": half if n < 2 else 0 for n in range(4)}
    await pods.scale(1)
    assert sum(moves(read_served(place))) == 0
    assert (await client.desired_workers()).desired == 2
    await pods.scale(2)
    await load.goes_on()
    assert [n for n in moves(await load.end()) if n] == [1] * half


@pytest.mark.first
@pytest.mark.slow
async def test_scale_in_hands_sessions_over(workload: Callable[..., Workload], client: Client, place: Path) -> None:
    """From two pods to four, and to one, with the sessions on all of them, and none left to a next start."""
    pods, load = workload("postgres", AFFINITY_RESTART_GRACE="0"), Load(client, place)
    await pods.scale(2)
    await registered(client, 2)
    await pods.scale(4)
    await registered(client, 4)
    await load.start()
    await load.goes_on()
    before = {row.worker_id: row.sessions for row in await client.workers()}
    assert before["affinity-workers-0"] < SESSIONS
    await pods.scale(1)
    await load.goes_on()
    served = await load.end()
    assert {one.worker for one in served[-SESSIONS:]} == {"affinity-workers-0"}
    assert sum(moves(served)) >= SESSIONS - before["affinity-workers-0"]


async def registered(client: Client, workers: int) -> None:
    """Until so many are alive."""
    with anyio.fail_after(PATIENCE):
        while sum(row.alive for row in await client.workers()) < workers:
            await anyio.sleep(0.1)


@pytest.mark.first
@pytest.mark.slow
async def test_a_restart_of_each_pod_moves_each_session_at_most_once(
    workload: Callable[..., Workload], client: Client, place: Path
) -> None:
    """As a rolling update does, the highest ordinal first, of the overlay with a fixed number of pods."""
    pods, load = workload("postgres"), Load(client, place)
    await pods.scale(3)
    await registered(client, 3)
    await load.start()
    await load.goes_on()
    for ordinal in (2, 1, 0):
        await pods.restart(ordinal)
        await load.goes_on()
    assert max(moves(await load.end())) <= 1


@pytest.mark.slow
async def test_the_pod_with_a_file_goes_on_where_it_was(tmp_path: Path, place: Path) -> None:
    """The overlay with SQLite: one pod, restarted under load."""
    url = f"sqlite:///{tmp_path / 'affinity.db'}"
    await migrate(url)
    pods = Workload("sqlite-single", "", place, AFFINITY_URL=url)
    try:
        await pods.scale(1)
        async with Client(url) as client:
            load = Load(client, place)
            await load.start()
            await load.goes_on()
            await pods.restart(0)
            await load.goes_on()
            assert moves(await load.end()) == [1] * SESSIONS
    finally:
        pods.end()
