"""A few random programs; `.ci/run --all` runs more of them, and `python -m tests.programs` looks on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, get_args
from unittest.mock import AsyncMock

import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from affinity import App, ConversationHandle, Wake, errors
from affinity.agent.loop import _Loop
from affinity.client import inspection, waits
from affinity.client.inspection import filter_of
from affinity.conversation import lineage
from affinity.conversation.attempt import Attempt
from affinity.conversation.kept_state import KeptState
from affinity.conversation.lineage import CreationPlanner
from affinity.conversation.steps import Committed, WakeSteps
from affinity.conversation.transfer import Imported
from affinity.conversation.writing import WakeWriting
from affinity.errors import ConversationExists
from affinity.orchestration import codec
from affinity.orchestration.engine import Execution
from affinity.testing import Env
from affinity.testing.env.environment import GRACE_SECONDS
from affinity.testing.env.sqlite import SqliteDatabase
from affinity.testing.env.waiting import EnvDatabase
from tests.conftest import Servers
from tests.programs import calls
from tests.programs.__main__ import Look, lines, main
from tests.programs.acts import Ask
from tests.programs.areas import AREAS
from tests.programs.areas.agents import AgentsPart, Call, Turn
from tests.programs.areas.conversations.handler import calls_of
from tests.programs.areas.conversations.script import FOR_GOOD, ConversationScript, Op
from tests.programs.areas.orchestrations import OrchestrationsPart
from tests.programs.bodies import Carry, Job, SetLabels, Wait
from tests.programs.databases import Copies, Pooled, Replaced
from tests.programs.draw import Failed, programs, search, text
from tests.programs.play import Play
from tests.programs.program import Options, Program, Size
from tests.programs.run import run
from tests.programs.set_back import SetBack
from tests.programs.values import KINDS, Part
from tests.servers.pgbouncer import PROGRAM


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_some_programs_on_sqlite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--programs", "2"]) == 0
    assert "2 programs" in capsys.readouterr().out


@pytest.mark.timeout(300)
def test_some_programs_on_postgres(servers: Servers) -> None:
    look = Look(Copies(servers.server("old")), list(AREAS))
    look.run(1, 1, None)
    assert "1 programs" in look.report()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(PROGRAM is None, reason="this machine has no program pgbouncer")
def test_some_programs_through_a_pooler(servers: Servers) -> None:
    """Clients go through PgBouncer in transaction mode, which fails; workers go past it."""
    pooled = Pooled(servers.server("old"))
    look = Look(pooled, list(AREAS), size="small")
    look.run(1, 3, None)
    assert "3 programs" in look.report()
    assert pooled.done > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_some_programs_over_new_timelines(servers: Servers) -> None:
    """All connections end, workers and clients find another timeline, and each session has a new epoch."""
    replaced = Replaced(servers.server("old"))
    look = Look(replaced, list(AREAS), size="small")
    look.run(1, 3, None)
    assert "3 programs" in look.report()
    assert replaced.done >= 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_some_programs_whose_database_is_set_back(servers: Servers) -> None:
    """To an earlier moment: workers remember what the database has lost."""
    where = SetBack(servers.server("old"))
    look = Look(where, list(AREAS), size="small")
    look.run(1, 6, None)
    assert "6 programs" in look.report()
    assert where.done == 6


class _EndsLate:
    """Databases whose faults end long after the clients of a program have."""

    has_outages = False

    async def create(self) -> EnvDatabase:
        return await SqliteDatabase.create()

    @asynccontextmanager
    async def faults(self) -> AsyncIterator[None]:
        yield
        await anyio.sleep(4 * GRACE_SECONDS)


async def test_a_call_that_waits_until_the_faults_end_is_no_failure() -> None:
    """Nothing is due, and nobody moves the clock."""
    part = OrchestrationsPart((Job((Wait(),)),), ((Ask(),),))
    await run(Program({"orchestrations": part}), _EndsLate())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_program_that_fails_is_made_small() -> None:
    """Of a timer, little is left beside it."""

    def judge(program: Program) -> None:
        assert "Timer" not in repr(program)

    with pytest.raises(Failed) as failed:
        search(judge, areas=["orchestrations"], count=50, seed=1)
    assert len(repr(failed.value.program)) < 300


async def test_a_delegation_that_ends_before_that_of_its_child_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = ("delegate", "b", 4, (("confirm", None, (("finish", 3),)),))
    steps = (("delegate", "a", 4, (inner, ("say", 2))),)
    program = Program({"conversations": ConversationScript(((Op("send", steps=steps),),))})
    await run(program)
    monkeypatch.setattr(WakeWriting, "has_open_delegations", False)
    with pytest.raises(AssertionError, match=r"was given .* result='said 2 at"):
        await run(program)


async def test_a_handler_that_asks_its_own_conversation_in_vain_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (("tell", 1, (("say", 2),)), ("compress", "x"), ("ask", 0, ()), ("question", 0))
    program = Program({"conversations": ConversationScript(((Op("send", steps=steps),),))})
    await run(program)

    async def allow(handle: ConversationHandle) -> None:
        pass

    monkeypatch.setattr(ConversationHandle, "_check_not_blocked", allow)
    with pytest.raises(AssertionError, match="was refused, and is entry"):
        await run(program)


async def test_a_withdrawn_request_that_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the same wake, and one of an earlier wake."""
    asks = (("confirm", None, ()), ("tool", 600, ()))
    sent = [Op("send", steps=(*asks, ("withdraw",)), ticks=5), Op("send", steps=asks, ticks=5)]
    program = Program({"conversations": ConversationScript(((*sent, Op("send", steps=(("withdraw",),))),))})
    await run(program)
    monkeypatch.setattr(WakeWriting, "withdraw", lambda writing, request_id, answer: writing.note(answer))
    with pytest.raises(AssertionError, match=r"resolves request .* again"):
        await run(program)


async def test_what_a_wake_has_made_and_is_not_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program({"conversations": ConversationScript(((Op("send", steps=(("compress", "x"),)),),))})
    await run(program)
    monkeypatch.setattr(Wake, "_create", AsyncMock())
    with pytest.raises(AssertionError, match="has made conversations-0~x, by compress, which is not there"):
        await run(program)


IN_PARTS: Final = (("note", 1), ("confirm", None, ()), ("commit", True), ("fail", 1, False), ("confirm", None, ()))
"""A wake that commits a part, and fails once: the next attempt adds that again, and goes on behind it."""


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"is_part": False}, "by its entries processed up to 0: processed 1"),
        ({"entries": ()}, "^conversations-0, wake at 2: has processed 0 to 1, and has failed"),
        ({"requests": ()}, "^conversations-0: {.*}, not {.*, .*}"),
        ({"steps": ()}, "begins with the state of an earlier attempt"),
    ],
)
async def test_a_part_of_a_wake_that_is_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], found: str
) -> None:
    """It moves the watermark; its entries, its request, or the state of before the wake are lost."""
    program = Program({"conversations": ConversationScript(((Op("send", steps=IN_PARTS),),))})
    await run(program)
    take_part = WakeWriting.take_part
    monkeypatch.setattr(WakeWriting, "take_part", lambda writing: replace(take_part(writing), **wrong))
    with pytest.raises(AssertionError, match=found):
        await run(program)


async def test_a_part_of_a_wake_without_its_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program({"conversations": ConversationScript(((Op("send", steps=IN_PARTS),),))})
    commit = WakeSteps._commit
    monkeypatch.setattr(WakeSteps, "_commit", lambda steps, state, part: commit(steps, None, part))
    with pytest.raises(AssertionError, match="is committed, without the state"):
        await run(program)


async def test_what_is_committed_and_added_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program({"conversations": ConversationScript(((Op("send", steps=IN_PARTS),),))})
    monkeypatch.setattr(Committed, "take", lambda *_: None)
    with pytest.raises(AssertionError, match="required again, is"):
        await run(program)


async def test_an_id_of_an_earlier_attempt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program({"conversations": ConversationScript(((Op("send", steps=IN_PARTS),),))})
    monkeypatch.setattr(WakeSteps, "has_parts", property(lambda _: False, lambda *_: None), raising=False)
    with pytest.raises(AssertionError, match=r"does not know of Before"):
        await run(program)


TRIES: Final = 10
"""Runs of a program on a broken product. Each of the faults shows in nearly every run."""


def _of(*ops: Op) -> Program:
    """One client of conversations."""
    return Program({"conversations": ConversationScript((ops,))})


async def _run_often(program: Program) -> None:
    """What the clients meet depends on the speed of the machine."""
    for _ in range(TRIES):
        await run(program)


async def _find(program: Program, monkeypatch: pytest.MonkeyPatch, found: str, *broken: Any) -> None:
    """The program passes, and fails where the product is broken."""
    await run(program)
    monkeypatch.setattr(*broken)
    with pytest.raises((AssertionError, ExceptionGroup)) as failed:
        await _run_often(program)
    assert re.search(found, "".join(lines(failed.value))), failed.value


WAITS: Final = (("confirm", None, (("say", 1),)), ("revisit", 86_400, "k", ()))


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        ("its export has lost", (lineage, "waiting_lines", lambda *_: [])),
        ("0.1: .*set.*, not {", (Imported, "requests", [])),
        ("the revisits .'k'. are gone", (Imported, "revisits", property(lambda _: [], lambda *_: None))),
    ],
)
async def test_a_copy_without_what_waits_is_found(
    monkeypatch: pytest.MonkeyPatch, found: str, broken: tuple[Any, ...]
) -> None:
    await _find(_of(Op("send", steps=WAITS, ticks=3), Op("copy")), monkeypatch, found, *broken)


@pytest.mark.parametrize("making", [Op("fork"), Op("detach"), Op("merge", n=1), Op("compress"), Op("copy")], ids=str)
async def test_a_call_that_takes_what_another_one_has_made_is_found(
    monkeypatch: pytest.MonkeyPatch, making: Op
) -> None:
    sent = [Op("send", on, steps=(("say", 1),), ticks=5) for on in (0, 1)]
    broken = (CreationPlanner, "check_repeated", AsyncMock())
    await _find(_of(*sent, making, Op("again")), monkeypatch, "has been made again, with", *broken)


async def test_a_wake_that_takes_what_another_one_has_made_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Op("send", steps=(("fork", "x"),), ticks=5)
    create = Wake._create

    async def take(wake: Wake, creation: Any) -> None:
        with suppress(ConversationExists):
            await create(wake, creation)

    await _find(_of(sent, sent), monkeypatch, "has made .*~x, by fork, twice", Wake, "_create", take)


async def test_a_good_input_that_a_bad_one_takes_along_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = (("say", 1),), (("fail", FOR_GOOD, False),)
    sent = [Op("send", steps=steps, ticks=0) for steps in (good, bad) * 4]  # most while a bad one is retried
    program = _of(*sent, Op("pause", ticks=30), Op("send"))
    await _find(program, monkeypatch, r"sets aside \[.*,.*\] together", Attempt, "_has_several", False)


async def test_an_error_of_a_group_that_is_another_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _of(Op("send", steps=(("group", 1, False),)))
    await _find(program, monkeypatch, "has failed: .*ExceptionGroup", errors, "errors_in", lambda error: [error])


async def test_an_error_that_is_retried_and_should_not_be_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _of(Op("send", steps=(("fail", 1, True),)))
    once = lambda attempt, *_: None if attempt.task.get("failures") else 1.0  # noqa: E731
    await _find(program, monkeypatch, "is not the last one", Attempt, "_pause", once)


CIRCLE: Final = _of(Op("send", steps=(("meet", 1, (("meet", 0, ()),)),)))
"""Two handlers that wait for each other, as on two workers."""


async def test_a_circle_of_waits_that_nothing_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CIRCLE_SECONDS", 2.0)
    await _find(CIRCLE, monkeypatch, "waits for conversations-. in a circle", waits, "find_circle", lambda *_: ())


async def test_a_wait_that_is_refused_without_a_circle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SECONDS", 2.0)
    program = _of(Op("send", 2, steps=(("sleep",),) * 400), Op("send", steps=(("meet", 2, ()),)))
    await _find(program, monkeypatch, "and there is no circle", waits, "find_circle", lambda *_: ("a", "a"))


async def test_a_value_that_is_not_what_was_given_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    body = (Carry([kind for kind, *_ in KINDS].index(list[Part]), back=True),)
    program = Program({"orchestrations": OrchestrationsPart((Job(body),))}, options=Options(cached_instances=0))
    found = r"values were not read .*Part\("
    await _find(program, monkeypatch, found, codec, "find_loss", lambda *_: None)


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        ("begins with {}, and had {'tenant': 'acme'}", (Execution, "labels", property(lambda _: None))),
        (
            "by {'tenant': 'acme'}: .*, not ",
            (inspection, "filter_of", lambda where, *of: filter_of({**where, "labels": {}}, *of)),
        ),
    ],
)
async def test_labels_that_are_lost_are_found(
    monkeypatch: pytest.MonkeyPatch, found: str, broken: tuple[Any, ...]
) -> None:
    """By an execution that continues another one, and by a listing."""
    part = OrchestrationsPart((Job((SetLabels(1),), rounds=1), Job(())))
    await _find(Program({"orchestrations": part}), monkeypatch, found, *broken)


async def test_results_of_calls_with_equal_ids_that_are_swapped_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program({"agents": AgentsPart((Turn(rounds=((Call(slow=20), Call()),)),))})
    make = _Loop._append_call
    swapped = lambda loop, call, message, _, usage: make(loop, call, message, "", usage)  # noqa: E731
    await _find(program, monkeypatch, "second result|the model has read", _Loop, "_append_call", swapped)


async def test_effects_of_a_tool_that_are_lost_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program({"agents": AgentsPart((Turn(rounds=((Call(),), (Call(),)), fails=1),))})
    begin = KeptState.begin

    async def forget(kept: KeptState, opening: Any) -> None:
        await begin(kept, opening)
        kept._kept.clear()

    await _find(program, monkeypatch, "has the effects", KeptState, "begin", forget)


@settings(
    max_examples=10,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.one_of(*(programs(size=size) for size in get_args(Size))))
def test_the_text_of_a_program_makes_it_again(program: Program) -> None:
    found: list[Any] = []
    names: dict[str, Any] = {}
    whole = text(program).replace("asyncio.run(", "found.append(").replace("run(program, *sys.argv[1:2])", "program")
    exec(whole, names | {"found": found})  # noqa: S102 -- this is what it is for
    assert found == [program]


@pytest.mark.anyio
async def test_nothing_waits_for_ticks_that_no_longer_come() -> None:
    """What is to be done later begins to wait only once the program is over."""
    done = AsyncMock()
    async with Env(App("none")) as env:
        play = Play(env, calls_of(env.client))
        play.later(4, done)
        play.stop()
        with anyio.fail_after(5):
            await play.end()
    done.assert_awaited_once()
