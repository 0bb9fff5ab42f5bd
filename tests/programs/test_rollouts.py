"""Programs whose instances are suspended by a release: that they are, and that a violation is found."""

from __future__ import annotations

from typing import Final, get_args

import pytest

from affinity.provider.sqlite.messages import reroute_all_messages
from affinity.provider.sqlite.sessions import SUSPENDED
from affinity.worker.maintenance import Maintenance
from tests.conftest import Servers
from tests.programs.acts import Send
from tests.programs.areas.conversations.script import ConversationScript, Op
from tests.programs.areas.orchestrations import OrchestrationsPart
from tests.programs.areas.starts import StartAct, StartsPart, Stay
from tests.programs.bodies import Activity, Child, Job, Timer, Wait
from tests.programs.databases import Copies
from tests.programs.program import Program, Rollout, RolloutKind
from tests.programs.run import Totals, run

JOB: Final = Job((Child((Timer(10), Wait(), Activity())), Timer(400)))
STEPS: Final = (("confirm", None, (("say", 1),)), ("delegate", "a", 1, (("say", 2),)))
PARTS: Final = {
    "orchestrations": OrchestrationsPart((JOB,) * 4, ((Send(0, after=4), Send(1, after=20)),)),
    "conversations": ConversationScript(((Op("ask", 0, steps=STEPS, ticks=5), Op("answer", 0, yes=True)),)),
}


def program(kind: RolloutKind = "changed", resumed_by: str = "operator", ticks: int | None = 20) -> Program:
    return Program(PARTS, workers=2, rollout=Rollout(4, kind, resumed_by, ticks))  # type: ignore[arg-type]


@pytest.mark.nightly_cases(r"\[20-")
@pytest.mark.parametrize("kind", get_args(RolloutKind))
@pytest.mark.parametrize("resumed_by", ["operator", "release", "rollback"])
@pytest.mark.parametrize("ticks", [20, None])
async def test_instances_that_a_release_suspends_go_on(kind: RolloutKind, resumed_by: str, ticks: int | None) -> None:
    totals = Totals()
    await run(program(kind, resumed_by, ticks), totals=totals)
    assert totals.suspensions > 0


async def test_a_conversation_ends_that_is_terminated_while_it_cannot_go_on() -> None:
    ops = (Op("send", 0, steps=(("say", 1),), ticks=30), Op("terminate", 0))
    totals = Totals()
    part = ConversationScript((ops,))
    await run(Program({"conversations": part}, rollout=Rollout(2, "missing", "release", None)), totals=totals)
    assert totals.suspensions > 0


async def test_starts_wait_at_a_limit_whose_slots_suspended_instances_have() -> None:
    stays = tuple(StartAct(number=number, stay=Stay(rooms="hall", lasts=30.0)) for number in range(4))
    totals = Totals()
    await run(Program({"starts": StartsPart((stays,))}, rollout=Rollout(1, "missing", "operator", None)), totals=totals)
    assert totals.suspensions > 0


@pytest.mark.timeout(300)
async def test_instances_that_a_release_suspends_go_on_on_postgres(servers: Servers) -> None:
    totals = Totals()
    for _ in range(10):  # on a busy machine all may be done before the release is there
        if not totals.suspensions:
            await run(program(), Copies(servers.server("old")), totals)
    assert totals.suspensions > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_instances_that_a_release_suspends_go_on_in_processes() -> None:
    totals = Totals()
    for _ in range(10):  # on a busy machine all may be done before the release is there
        if not totals.suspensions:
            await run(program(), totals=totals, processes=True)
    assert totals.suspensions > 0


async def test_a_release_that_does_not_take_suspended_instances_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_nothing(maintenance: Maintenance) -> bool:
        return False

    monkeypatch.setattr(Maintenance, "_retry_suspended", take_nothing)
    with pytest.raises(AssertionError, match="still suspended"):
        await run(program("changed", "release", None))


async def test_messages_that_a_resume_leaves_out_of_reach_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_suspend(tx, instance_ids, route):  # type: ignore[no-untyped-def]
        if route == SUSPENDED:
            reroute_all_messages(tx, instance_ids, route)

    monkeypatch.setattr("affinity.provider.sqlite.suspension.reroute_all_messages", only_suspend)
    with pytest.raises(AssertionError, match=r"a message has the route 'suspended'|is running|is pending"):
        await run(program("missing", ticks=None))  # one that ends earlier may be over before a worker is there


async def test_an_instance_that_is_suspended_without_a_reason_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.programs.rollouts.ERRORS", {"missing": "OrchestrationPoisoned"})
    with pytest.raises(AssertionError, match="is suspended by"):
        await run(program("missing", ticks=None))
