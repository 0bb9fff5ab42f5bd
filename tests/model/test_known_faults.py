"""The model finds faults that were fixed once, when the fix is taken out, and rules that are left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import pytest

from affinity.conversation.journal import Appended, JournalAppend, PendingWork, journal_writes
from affinity.conversation.store.contract import journals_of
from affinity.provider.contract import (
    Delivery,
    Generation,
    Hint,
    NewInstance,
    NewMessage,
    OrchestrationFetch,
    OrchestrationItem,
    Provider,
    Timeouts,
    Turn,
    TurnResult,
    WorkerIdentity,
)
from affinity.provider.postgres import session_store
from affinity.provider.timeline import Timeline
from affinity.worker.instances import InstanceTable
from tests.conftest import NIGHTLY
from tests.model.cluster import SimulatedCluster
from tests.model.conftest import Look
from tests.model.databases import ModelDatabase
from tests.model.leases import Violation
from tests.model.steps import PLANS
from tests.model.tables import TABLE_PLANS, TableCluster

USUAL = 200
"""Plans within which each of them is found."""


class FaultyProvider:
    """A provider with a fault that was fixed once; all else is the real one's."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self.provider, name)

    async def commit_turn(
        self, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts, *, notify: Collection[str] = ()
    ) -> Sequence[TurnResult]:
        """As the provider, with faulty turns."""
        faulty = [self.faulty(turn) for turn in turns]
        return await self.provider.commit_turn(identity, faulty, timeouts, notify=notify)

    def faulty(self, turn: Turn) -> Turn:
        """The turn, without a part of it."""
        return turn


class KeepsWhatItsTurnCancels(FaultyProvider):
    """One statement does not see its own inserts."""

    def faulty(self, turn: Turn) -> Turn:
        work = {item.key.activity_id for item in turn.work_items}
        timers = {message.timer[1] for message in turn.messages if message.timer is not None}
        return replace(
            turn,
            cancel_activities=[number for number in turn.cancel_activities if number not in work],
            cancel_timers=[number for number in turn.cancel_timers if number not in timers],
        )


class LosesWhatIsSentToItsChild(FaultyProvider):
    """For the same reason."""

    def faulty(self, turn: Turn) -> Turn:
        children = {child.instance_id for child in turn.instances}
        return replace(turn, messages=[m for m in turn.messages if m.instance_id not in children])


class TakesNamesForInstances(FaultyProvider):
    """A turn is of whichever instance has the id now."""

    def __init__(self, provider: Provider) -> None:
        super().__init__(provider)
        self.generations: dict[str, Generation] = {}

    async def create_instance(self, instances: Sequence[NewInstance]) -> Sequence[bool]:
        created = await self.provider.create_instance(instances)
        self.generations |= {
            new.instance_id: new.generation for new, is_new in zip(instances, created, strict=True) if is_new
        }
        return created

    async def fetch_orchestration_item(self, *args: Any, **options: Any) -> OrchestrationFetch:
        fetched = await self.provider.fetch_orchestration_item(*args, **options)
        self.generations |= {item.instance_id: item.generation for item in fetched.items}
        return fetched

    def faulty(self, turn: Turn) -> Turn:
        return replace(turn, generation=self.generations.get(turn.instance_id, turn.generation))


class ForgetsKeys(FaultyProvider):
    """An instance gets a message again."""

    async def send_message(self, messages: Sequence[NewMessage]) -> Sequence[Delivery]:
        return await self.provider.send_message([replace(message, key=None) for message in messages])


class IgnoresOrder(FaultyProvider):
    """Ordered items are as others."""

    def faulty(self, turn: Turn) -> Turn:
        return replace(turn, work_items=[replace(item, ordered=False) for item in turn.work_items])


class ChangesInputs(FaultyProvider):
    """Inputs are appended without a part of them."""

    without: ClassVar[Mapping[str, Any]]

    async def append_journal(
        self, appends: Sequence[JournalAppend], *, notify: Mapping[str | None, Hint] | None = None
    ) -> Sequence[Appended]:
        return await journals_of(self.provider).append_journal([self.changed(one) for one in appends], notify=notify)

    def changed(self, one: JournalAppend) -> JournalAppend:
        """The input, without a part of it."""
        return replace(one, **self.without)


class ForgetsEventIds(ChangesInputs):
    """An input is appended again."""

    def changed(self, one: JournalAppend) -> JournalAppend:
        return one if one.entry is None else replace(one, entry=replace(one.entry, event_id=None))


class KeepsWhatAnInputDrops(ChangesInputs):
    without: ClassVar[Mapping[str, Any]] = {"drops": False}


class StaysOpen(ChangesInputs):
    without: ClassVar[Mapping[str, Any]] = {"closes": False}


class TakesAnyAnswer(ChangesInputs):
    without: ClassVar[Mapping[str, Any]] = {"answers": None}


class ChangesWakes(FaultyProvider):
    """Wakes are committed with another part in place of theirs."""

    without: ClassVar[Mapping[str, Any]]

    def faulty(self, turn: Turn) -> Turn:
        return replace(turn, parts=[replace(write, **self.without) for write in journal_writes(turn.parts)])


class KeepsRevisitsThatAreDone(ChangesWakes):
    without: ClassVar[Mapping[str, Any]] = {"ended_revisits": ()}


class KeepsRequestsThatHaveExpired(ChangesWakes):
    without: ClassVar[Mapping[str, Any]] = {"ended_requests": ()}


class ForgetsRevisits(ChangesWakes):
    without: ClassVar[Mapping[str, Any]] = {"revisits": ()}


class TakesAnyWatermark(FaultyProvider):
    """A wake is committed though the watermark has moved since it read."""

    async def commit_turn(
        self, identity: WorkerIdentity, turns: Sequence[Turn], timeouts: Timeouts, *, notify: Collection[str] = ()
    ) -> Sequence[TurnResult]:
        names = [write.session_id for turn in turns for write in turn.parts]
        works = (
            dict(zip(names, await journals_of(self.provider).get_pending(names, limit=1), strict=True)) if names else {}
        )
        unfenced = [self._without_fence(turn, works) for turn in turns]
        return await super().commit_turn(identity, unfenced, timeouts, notify=notify)

    def _without_fence(self, turn: Turn, works: Mapping[str, PendingWork | None]) -> Turn:
        found = [(write, works[write.session_id]) for write in journal_writes(turn.parts)]
        return replace(
            turn,
            parts=[
                write if work is None else replace(write, base=work.processed, journal_id=work.journal_id)
                for write, work in found
            ],
        )


class TakesVersionsForRecords(FaultyProvider):
    """A record is whichever has the version."""

    @property
    def states(self) -> Any:
        store = self.provider.states

        class Store:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def save(self, *args: Any, generation: str | None = None, **options: Any) -> int:
                return await store.save(*args, **options)

        return Store()


@pytest.fixture(params=["sqlite"])
def database(request: pytest.FixtureRequest) -> ModelDatabase:
    """Where it costs least."""
    made: ModelDatabase = request.getfixturevalue(request.param)
    return made


FAULTS: Final = [
    (ForgetsKeys, 1),
    pytest.param(TakesAnyAnswer, 1, marks=NIGHTLY),
    pytest.param(ForgetsRevisits, 1, marks=NIGHTLY),
    pytest.param(KeepsWhatItsTurnCancels, 1, marks=NIGHTLY),
    pytest.param(LosesWhatIsSentToItsChild, 1, marks=NIGHTLY),
    pytest.param(TakesNamesForInstances, 19, marks=NIGHTLY),
    pytest.param(TakesVersionsForRecords, 2, marks=NIGHTLY),
    pytest.param(IgnoresOrder, 2, marks=NIGHTLY),
    pytest.param(ForgetsEventIds, 4, marks=NIGHTLY),
    pytest.param(KeepsWhatAnInputDrops, 6, marks=NIGHTLY),
    pytest.param(StaysOpen, 6, marks=NIGHTLY),
    pytest.param(KeepsRevisitsThatAreDone, 1, marks=NIGHTLY),
    pytest.param(KeepsRequestsThatHaveExpired, 1, marks=NIGHTLY),
    pytest.param(TakesAnyWatermark, 10, marks=NIGHTLY),
]
"""Most take many seconds, and the others show in each run that the model finds faults."""


@pytest.mark.parametrize(("worse", "seed"), FAULTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_the_contract(
    look: Look,
    database: ModelDatabase,
    worse: Callable[[Provider], FaultyProvider],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The seed is one with which few plans find it."""
    real = database.provider

    async def provider(timeline: Timeline | None = None) -> Provider:
        return worse(await real(timeline))

    monkeypatch.setattr(database, "provider", provider)
    with pytest.raises(Violation):
        look(PLANS, SimulatedCluster, usual=USUAL, made_plain=False, seed=seed)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("verb", ["save", "delete"])
def test_a_script_that_writes_during_a_first_claim(look: Look, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """It makes the row of the session before it touches the record."""
    faults = {
        "save": [
            (
                "WHERE %(epoch)s::bigint IS NULL AND NOT EXISTS (SELECT FROM sessions",
                "WHERE false AND EXISTS (SELECT FROM sessions",
            ),
            ("SELECT %(epoch)s::bigint IS NULL AND NOT EXISTS (SELECT FROM begun)", "SELECT false"),
        ],
        "delete": [
            ("FROM candidate c CROSS JOIN", "FROM (SELECT * FROM candidate WHERE false) c CROSS JOIN"),
            ("WHERE r.session_id = ANY (ARRAY (SELECT session_id FROM locked))", "JOIN candidate USING (session_id)"),
            (
                "WHERE EXISTS (SELECT FROM candidate WHERE session_id NOT IN",
                "WHERE false AND EXISTS (SELECT WHERE '' IN",
            ),
        ],
    }
    statement = session_store._SQL[verb]
    for part, fault in faults[verb]:
        assert part in statement
        statement = statement.replace(part, fault)
    monkeypatch.setattr(session_store, "_SQL", {**session_store._SQL, verb: statement})
    with pytest.raises(Violation):
        look(PLANS, SimulatedCluster, usual=USUAL, made_plain=False, seed=3)


def test_a_lost_tail_that_no_worker_detects(
    look: Look, database: ModelDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs and message ids come back."""

    async def show_loss() -> None:
        """Nothing is seen."""

    monkeypatch.setattr(database, "show_loss", show_loss)
    with pytest.raises(Violation):
        look(PLANS, SimulatedCluster, usual=USUAL, made_plain=False)


@pytest.mark.slow
def test_messages_that_go_back_are_overtaken(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that left them out brings what came after them."""
    real = InstanceTable.deliver

    def deliver(self: InstanceTable, items: Sequence[OrchestrationItem]) -> None:
        self._gave_back.clear()
        real(self, items)

    monkeypatch.setattr(InstanceTable, "deliver", deliver)
    with pytest.raises(Violation):
        look(TABLE_PLANS, TableCluster, usual=USUAL, made_plain=False)


def test_a_coroutine_of_an_instance_that_is_gone(
    look: Look, database: ModelDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on as the one that has the id now."""
    real, provider = InstanceTable._keep_if_current, database.provider

    def is_current(self: InstanceTable, item: OrchestrationItem) -> bool:
        live = self._live.get(item.instance_id)
        if live is not None:
            live.generation = item.generation
        return real(self, item)

    async def worse(timeline: Timeline | None = None) -> Provider:
        return TakesNamesForInstances(await provider(timeline))

    monkeypatch.setattr(InstanceTable, "_keep_if_current", is_current)
    monkeypatch.setattr(database, "provider", worse)
    with pytest.raises(Violation):
        look(TABLE_PLANS, TableCluster, usual=USUAL, made_plain=False)
