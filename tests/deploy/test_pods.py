"""The pod template as processes, under load: its environment, command, hooks, signals and grace period."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from affinity.client import Client
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
        self.pods[ordinal:] = [pod]

    async def scale(self, replicas: int) -> None:
        """As the controller does with `podManagementPolicy: Parallel`: the highest ordinals end, all at once."""
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
        self._sessions = [f"session-{number}" for number in range(SESSIONS)]

    async def start(self) -> None:
        for session in self._sessions:
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
        """Stop the sessions and check what became of them: every turn has one result, and is in the state once, in order;
        no turn was served twice; and no session had two holders at a time.
        """
        (self._place / "stop").touch()
        store = self._client.session_store
        served = read_served(self._place)
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


def moves(served: Sequence[Served], session: str) -> int:
    """How often the session changed its holder, a new start of the same name included."""
    own = sorted((one for one in served if one.session == session), key=lambda one: one.began)
    return len([epoch for epoch, _ in groupby(one.epoch for one in own)]) - 1


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "load"
    place.mkdir()
    return place


@pytest.fixture
def autoscaled(postgres_database: str, place: Path) -> Iterator[Workload]:
    """With room for half of the sessions in each pod, so that two suffice."""
    most = str(SESSIONS // 2)
    workload = Workload("autoscaled", postgres_database, place, AFFINITY_MAX_SESSIONS_PER_RUNTIME=most)
    try:
        yield workload
    finally:
        workload.end()


async def test_scaling_loses_and_doubles_nothing(autoscaled: Workload, postgres_database: str, place: Path) -> None:
    """From two pods to four, and to one that takes half of the sessions, and back to two, which take all."""
    await autoscaled.scale(2)
    async with Client(postgres_database) as client:
        load = Load(client, place)
        await registered(client, 2)
        await load.start()
        await load.goes_on()
        assert (await client.desired_workers()).desired == 2
        await autoscaled.scale(4)
        await registered(client, 4)
        await load.goes_on()
        demand = await client.desired_workers()
        assert (demand.held, demand.desired) == (SESSIONS, 2)
        held = {row.worker_id: row.sessions for row in await client.workers() if row.alive}
        assert held == {f"affinity-workers-{n}": SESSIONS // 2 if n < 2 else 0 for n in range(4)}
        await autoscaled.scale(2)  # what the autoscaler does: it moves nothing, since the sessions are packed
        await load.goes_on()
        assert [moves(read_served(place), f"session-{n}") for n in range(SESSIONS)] == [0] * SESSIONS
        await autoscaled.scale(1)
        with anyio.fail_after(PATIENCE):
            while (await client.desired_workers()).waiting != SESSIONS // 2:
                await anyio.sleep(0.1)
        assert (await client.desired_workers()).desired == 2
        await autoscaled.scale(2)
        await load.goes_on()
        await load.end()


async def registered(client: Client, workers: int) -> None:
    """Until so many are alive."""
    with anyio.fail_after(PATIENCE):
        while sum(row.alive for row in await client.workers()) < workers:
            await anyio.sleep(0.1)


@pytest.mark.parametrize("any_url", ["sqlite", "postgresql"], indirect=True)
async def test_scaling_by_hand(any_url: str, place: Path) -> None:
    """N to N+2 to N-1."""
    assert any_url
