"""A few random programs; `.ci/run` runs more of them, and `python -m tests.programs` looks on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, get_args
from unittest.mock import AsyncMock

import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from affinity import App, Wake
from affinity.conversation import ConversationHandle
from affinity.conversation.steps import Committed, WakeSteps
from affinity.conversation.writing import WakeWriting
from affinity.testing import Env
from tests.conftest import Servers
from tests.programs.__main__ import Look, main
from tests.programs.areas import AREAS
from tests.programs.areas.conversations.handler import calls_of
from tests.programs.areas.conversations.script import ConversationScript, Op
from tests.programs.databases import Copies
from tests.programs.draw import Failed, programs, search, text
from tests.programs.play import Play
from tests.programs.program import Program, Size
from tests.programs.run import run


@pytest.mark.timeout(300)
def test_some_programs_on_sqlite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--programs", "2"]) == 0
    assert "2 programs" in capsys.readouterr().out


@pytest.mark.timeout(300)
def test_some_programs_on_postgres(servers: Servers) -> None:
    look = Look(Copies(servers.server("old")), list(AREAS))
    look.run(1, 1, None)
    assert "1 programs" in look.report()


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
    with pytest.raises(AssertionError, match="has asked itself: WaitTimeout"):
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
    with pytest.raises(AssertionError, match=r"has ToolConfirmation.*, another id"):
        await run(program)


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
