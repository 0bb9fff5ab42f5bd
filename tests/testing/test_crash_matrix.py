"""`affinity.testing.crash_matrix`: a scenario with a crash, or a lost answer, at each of its commits."""

from __future__ import annotations

import os
import sys
from itertools import count
from typing import Any

import pytest
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, ToolConfirmation, UserMessage
from affinity.errors import CrashMatrixFailed, InvalidInput
from affinity.testing import CrashMode, Env, crash_matrix

DAY = 86_400

BOTH = pytest.mark.parametrize("any_url", ["sqlite", pytest.param("new", marks=pytest.mark.slow)], indirect=True)
"""`crash_matrix` does not depend on the version of PostgreSQL."""


class Basket(BaseModel):
    items: list[str] = []


app = affinity.App("shop")
baskets = affinity.Sessions(Basket, kind="basket")
app.include(baskets)

ran: list[tuple[str, int]] = []
"""The worker and the attempt of each run of `add`, in this process."""


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


@app.activity
async def add(ctx: affinity.ActivityContext, item: str) -> int:
    ran.append((ctx.worker_id, ctx.attempt))
    async with baskets.open(ctx) as basket:
        basket.items.append(item)
    return len(basket.items)


@app.activity
async def pid(ctx: affinity.ActivityContext) -> int:
    return os.getpid()


@app.orchestration
async def shopping(ctx: affinity.OrchestrationContext, items: list[str]) -> list[int]:
    counts = []
    for item in items:
        counts.append(await ctx.schedule_activity(add, item).on_session(ctx.instance_id))
        await ctx.schedule_timer(DAY)
    return counts


@app.orchestration
async def pids(ctx: affinity.OrchestrationContext) -> list[int]:
    return [await ctx.schedule_activity(pid).on_session("s") for _ in range(4)]


support = affinity.Conversations(Basket, kind="support")


@support.on_wake
async def respond(wake: affinity.Wake, basket: Basket) -> None:
    for event in wake.events:
        if isinstance(event, UserMessage):
            basket.items.append(event.text)
            wake.require(ToolConfirmation(tool="refund", arguments={}))
            wake.append(AgentMessage("may I?"))
        else:
            wake.append(AgentMessage(f"done: {basket.items}"))


app.include(support)


@pytest.fixture
def url(any_url: str) -> str | None:
    """Of a PostgreSQL server; None: an SQLite file."""
    return None if any_url.startswith("sqlite") else any_url


async def shop(env: Env) -> list[int]:
    run = await env.client.start(shopping, ["tea", "milk"], instance_id="o-1")
    return await run.wait()


async def talk(env: Env) -> list[str]:
    conversation = env.client.conversation(support, "c-1")
    said = [(await conversation.ask(UserMessage("tea"), event_id="m-1")).text]
    (request,) = await conversation.requests()
    seq = await conversation.answer(request.request_id, allowed=True)
    return [*said, (await conversation.reply(seq)).text]


async def shop_and_talk(env: Env) -> Any:
    return await shop(env), await talk(env)


async def is_right(env: Env, outcome: Any) -> None:
    assert outcome == ([1, 2], ["may I?", "done: ['tea']"])
    record = await env.client.session_manager.show("o-1")
    assert Basket.model_validate_json(record.state).items == ["tea", "milk"]
    messages = [one.event for one in await env.client.conversation(support, "c-1").history()]
    assert [one.text for one in messages if isinstance(one, AgentMessage)] == ["may I?", "done: ['tea']"]


@BOTH
@pytest.mark.slow
@pytest.mark.nightly_cases("new")
@pytest.mark.timeout(300)
async def test_a_right_app_passes(url: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = await crash_matrix(app, shop_and_talk, is_right, url=url, seed=1)
    assert matrix.commits >= 8, "turns of two activities and two wakes"
    assert matrix.runs == 3 * matrix.commits + 3
    assert matrix.hit >= matrix.runs - 5, "the number of commits hardly varies"
    assert not matrix.failures
    assert capsys.readouterr().out.splitlines()[-1] == str(matrix)
    assert str(matrix).startswith(f"crash_matrix: {matrix.commits} commits, {matrix.runs} runs, ")
    assert str(matrix).endswith("seed=1")


async def counted(mode: CrashMode, seed: int = 1) -> list[tuple[str, int]]:
    """The runs of one activity, whose result is in the second commit."""

    async def scenario(env: Env) -> list[int]:
        ran.clear()  # the undisturbed run is over
        return await (await env.client.start(shopping, ["tea"])).wait()

    def check(env: Env, outcome: list[int]) -> None:
        assert ran
        assert outcome == [1]

    matrix = await crash_matrix(app, scenario, check, seed=seed, only=(2, mode), kills=0)
    assert (matrix.runs, matrix.hit) == (1, 1)
    return list(ran)


async def test_a_crash_before_the_result_is_committed_repeats_the_activity() -> None:
    assert [attempt for _, attempt in await counted("before")] == [1, 2]


async def test_a_crash_after_the_commit_of_the_result_repeats_nothing() -> None:
    assert [attempt for _, attempt in await counted("after")] == [1]


async def test_a_lost_answer_repeats_nothing_either() -> None:
    assert await counted("lost") == [("worker-0", 1)]


async def test_the_worker_starts_again_or_another_one_takes_over_by_the_seed() -> None:
    assert await counted("before", seed=0) == [("worker-0", 1), ("worker-0", 2)]
    for _ in range(2):
        assert await counted("before", seed=4) == [("worker-0", 1), ("worker-1", 2)]


# --- what it finds ----------------------------------------------------------------------------------------------------


broken = affinity.App("broken")
broken.include(baskets)
clock: list[int] = []


@broken.activity
async def add_early(ctx: affinity.ActivityContext, item: str) -> int:
    opening = baskets.open(ctx)
    async with opening as basket:
        basket.items.append(item)
        await opening.checkpoint()  # the defect: it stays when the result is lost
    return len(basket.items)


@broken.orchestration
async def saves_apart(ctx: affinity.OrchestrationContext) -> int:
    return await ctx.schedule_activity(add_early, "tea").on_session("s")


@broken.orchestration
async def reads_a_global(ctx: affinity.OrchestrationContext) -> int:
    clock.append(1)
    await ctx.schedule_timer(len(clock))
    await ctx.schedule_activity(add_early, f"item {len(clock)}").on_session("s")
    return 1


def start(name: str) -> Any:
    async def scenario(env: Env) -> int:
        clock.clear()
        run: affinity.Handle[int] = await env.client.start(name, instance_id="o-7")
        return await run.wait()

    return scenario


def is_one(env: Env, outcome: int) -> None:
    assert outcome == 1


@BOTH
async def test_a_state_that_is_saved_apart_from_the_result_is_found(
    url: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CrashMatrixFailed) as failed:
        await crash_matrix(broken, start("saves_apart"), is_one, url=url, seed=5, kills=0)
    text = str(failed.value)
    assert failed.value.points == [(2, "after"), (3, "before")], "between the state and the result"
    assert "2 of 9 runs failed (3 commits, seed=5); first:" in text
    assert "the worker crashed after commit 2 (save by worker-0: the state of session 's') and " in text
    assert "AssertionError: assert 2 == 1" in text
    assert "crash_matrix(…, seed=5, only=(2, 'after'))" in text
    assert "the others: (3, 'before')" in text
    assert "only=(2, 'after')" in capsys.readouterr().out, "printed as soon as it is known"
    assert "'o-7' is completed" in "\n".join(failed.value.__notes__), "the histories of the env"
    assert isinstance(failed.value.__cause__, AssertionError)

    with pytest.raises(CrashMatrixFailed, match="the result of 'add_early', completed"):
        await crash_matrix(broken, start("saves_apart"), is_one, url=url, seed=5, only=(3, "before"))
    matrix = await crash_matrix(broken, start("saves_apart"), is_one, url=url, seed=5, only=(2, "lost"))
    assert (matrix.runs, matrix.hit) == (1, 1), "an answer that is lost does no harm here"


async def test_an_orchestration_that_reads_a_global_is_found() -> None:
    with pytest.raises(CrashMatrixFailed, match=r"is suspended since .*Nondeterminism"):
        await crash_matrix(broken, start("reads_a_global"), is_one, kills=0)


async def test_the_matrix_ends_after_ten_failures() -> None:
    checks = count()

    def fails_after_a_crash(env: Env, outcome: list[int]) -> None:
        assert next(checks) == 0

    with pytest.raises(CrashMatrixFailed, match="the matrix ended after 10 failures") as failed:
        await crash_matrix(app, shop, fails_after_a_crash, kills=0)
    assert failed.value.points == [(n, mode) for n in range(1, 5) for mode in ("before", "after", "lost")][:10]


async def test_a_failure_without_a_crash_is_that_of_the_scenario() -> None:
    with pytest.raises(AssertionError, match="assert 1 == 2") as failed:
        await crash_matrix(app, start_one, lambda env, found: is_two(found), kills=0)
    assert any("undisturbed run" in note for note in failed.value.__notes__)


async def start_one(env: Env) -> int:
    return (await (await env.client.start(shopping, ["tea"])).wait())[0]


def is_two(found: int) -> None:
    assert found == 2


async def test_a_run_that_ends_before_its_commit_is_not_counted_as_hit() -> None:
    matrix = await crash_matrix(app, shop, lambda env, outcome: None, only=(1000, "before"))
    assert (matrix.runs, matrix.hit) == (1, 0)


async def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidInput, match="kills = -1"):
        await crash_matrix(app, shop, is_right, kills=-1)
    only: Any
    for only in ((0, "before"), (1, "behind")):
        with pytest.raises(InvalidInput, match="only = "):
            await crash_matrix(app, shop, is_right, only=only)


async def returns_a_comparison(env: Env, outcome: list[int]) -> bool:
    return outcome == [1, 2]


async def test_a_check_that_returns_a_value_is_refused() -> None:
    check: Any
    for check, returned in (
        (lambda env, outcome: outcome == 99, False),
        (lambda env, outcome: 0, 0),
        (returns_a_comparison, True),
    ):
        with pytest.raises(InvalidInput, match=f"check asserts; it returned {returned}"):
            await crash_matrix(app, shop, check, only=(1, "before"))


# --- the calls of the scenario, and state outside ---------------------------------------------------------------------


async def test_faults_of_the_scenario_itself_go_on() -> None:
    async def scenario(env: Env) -> int:
        env.fail_commits(2)
        run = await env.client.start(shopping, ["tea", "milk"])
        await env.crash(0)
        return len(await run.wait())

    def check(env: Env, outcome: int) -> None:
        assert outcome == 2

    matrix = await crash_matrix(app, scenario, check, only=(4, "lost"))
    assert matrix.hit == 1


async def test_a_function_makes_the_app_of_each_run() -> None:
    made: list[affinity.App] = []

    def make() -> affinity.App:
        made.append(app)
        return app

    def check(env: Env, outcome: list[int]) -> None:
        assert outcome == [1, 2]

    matrix = await crash_matrix(make, shop, check, kills=0)
    assert len(made) == 1 + matrix.runs


@pytest.mark.slow
async def test_several_workers_share_the_work() -> None:
    matrix = await crash_matrix(app, shop_and_talk, is_right, workers=2, kills=1)
    assert not matrix.failures


# --- processes that are killed ----------------------------------------------------------------------------------------


memory: list[str] = []


@broken.activity
async def keep(ctx: affinity.ActivityContext) -> None:
    memory.append("tea")  # the defect: it is gone with the process


@broken.activity
async def recall(ctx: affinity.ActivityContext) -> int:
    return len(memory[-1:])


@broken.orchestration
async def keeps_in_a_global(ctx: affinity.OrchestrationContext) -> int:
    await ctx.schedule_activity(keep)
    await ctx.schedule_timer(DAY)
    await ctx.schedule_timer(DAY)  # the clock does not jump before a killed process is replaced
    return await ctx.schedule_activity(recall)


@pytest.mark.slow
async def test_state_that_is_gone_with_the_process_is_found_by_a_kill_only() -> None:
    matrix = await crash_matrix(broken, start("keeps_in_a_global"), is_one, seed=1, kills=0)
    assert matrix.runs == 3 * matrix.commits
    with pytest.raises(CrashMatrixFailed, match="was killed about commit 3") as failed:
        await crash_matrix(broken, start("keeps_in_a_global"), is_one, seed=1, only=(3, "kill"))
    assert "assert 0 == 1" in str(failed.value)


@BOTH
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_processes_are_killed_and_others_go_on(url: str | None) -> None:
    outcomes: list[set[int]] = []

    async def scenario(env: Env) -> list[int]:
        return await (await env.client.start(pids)).wait()

    def note(env: Env, outcome: list[int]) -> None:
        assert len(outcome) == 4
        outcomes.append(set(outcome))

    for number in (2, 3, 4):
        matrix = await crash_matrix(app, scenario, note, url=url, seed=1, only=(number, "kill"))
        assert matrix.hit == 1
    assert outcomes[::2] == [{os.getpid()}] * 3, "the undisturbed runs"
    assert all(os.getpid() not in each for each in outcomes[1::2])
    assert max(len(each) for each in outcomes[1::2]) == 2, "one process was killed, and another one went on"


@pytest.mark.slow
async def test_time_jumps_for_processes_too() -> None:
    async def check(env: Env, outcome: list[int]) -> None:
        assert outcome == [1, 2]
        assert 2 * DAY <= (env.now() - env.started).total_seconds() < 2 * DAY + 60

    assert (await crash_matrix(app, shop, check, seed=1, only=(3, "kill"))).hit == 1


async def test_an_app_that_no_process_can_import_is_refused() -> None:
    local = affinity.App("local")
    for given in (local, lambda: local):
        with pytest.raises(InvalidInput, match=r"kill none \(kills=0\)"):
            await crash_matrix(given, shop, is_right)


@pytest.mark.slow
async def test_an_activity_of_a_process_cannot_be_faked() -> None:
    async def scenario(env: Env) -> list[int]:
        env.fake(add, 7)
        return await shop(env)

    with pytest.raises(CrashMatrixFailed, match="cannot be faked in the process of a worker"):
        await crash_matrix(app, scenario, lambda env, outcome: None, only=(1, "kill"))


def once() -> affinity.App:
    """Works in the process of the tests only."""
    if getattr(sys.modules["__main__"].__spec__, "name", None) == "affinity.testing.env.child":
        raise OSError("no network")
    return app


async def test_an_app_that_its_process_cannot_import_says_so() -> None:
    with pytest.raises(CrashMatrixFailed, match=r"cannot import .*test_crash_matrix:once: OSError\('no network'\)"):
        await crash_matrix(once, shop, lambda env, outcome: None, only=(1, "kill"))
