"""Schedules that workers fire, by a virtual clock: overlaps, missed ticks, declarations of several code versions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import affinity
from affinity import Instance
from affinity.conversation import AgentMessage, UserMessage
from affinity.limits import SCHEDULE_STEP
from affinity.provider.contract import Quotas
from affinity.schedules.store.contract import ScheduleRow, ScheduleWrite, schedules_of
from affinity.testing import Env

pytestmark = pytest.mark.anyio

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

app = affinity.App("shop")
support = affinity.Conversations(dict[str, Any], kind="support")


@app.orchestration
async def report(ctx: affinity.OrchestrationContext, due: datetime) -> str:
    assert ctx.scheduled_for == due
    return f"{due:%d %H:%M}"


@app.orchestration
async def slow(ctx: affinity.OrchestrationContext) -> str:
    """Ends at an event."""
    await ctx.schedule_wait("go")
    return "went"


@app.orchestration
async def carries_on(ctx: affinity.OrchestrationContext) -> str:
    if ctx.execution_id == 1:
        ctx.continue_as_new()
    return str(ctx.scheduled_for)


@app.orchestration
async def counter(ctx: affinity.OrchestrationContext) -> list[Any]:
    return [await ctx.schedule_wait("tick") for _ in range(3)]


@support.on_wake
async def answer(wake: affinity.Wake, state: dict[str, Any]) -> None:
    wake.append(AgentMessage("news"))


app.include(support)


def ended_at(env: Env, **after: float) -> datetime:
    return env.started + timedelta(**after)


async def instances(env: Env, schedule: str) -> list[Instance]:
    """The instances of a schedule, oldest tick first."""
    found = [each async for each in env.client.list_instances(prefix=f"{schedule}/")]
    return sorted(found, key=lambda each: each.instance_id)


async def due_times(env: Env, schedule: str) -> list[str]:
    return [each.instance_id.partition("@")[2] for each in await instances(env, schedule)]


def next_full(env: Env, period: timedelta, count: int) -> list[datetime]:
    """The next ticks of ``every``."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    first = epoch + ((env.now() - epoch) // period + 1) * period
    return [first + n * period for n in range(count)]


def texts(times: Sequence[datetime]) -> list[str]:
    return [each.isoformat().replace("+00:00", "Z") for each in times]


async def test_a_week_passes(env_url: str | None) -> None:
    """Each tick starts one instance, at its time, whose id, input and context have that time."""
    async with Env(app, url=env_url, workers=3) as env:
        shown = await env.client.schedules.create("nightly", report, cron="0 3 * * *", zone="Europe/Berlin")
        wanted = [shown.next_ticks[0]]
        await env.advance(7 * DAY)
        found = await instances(env, "nightly")
        assert len(found) == 7
        assert found[0].instance_id == f"nightly/{shown.generation}@{texts(wanted)[0]}"
        assert [each.status for each in found] == ["completed"] * 7
        assert [each.output for each in found] == [f"{each.created_at:%d %H:%M}" for each in found]
        shown = await env.client.schedules.show("nightly")
        assert (shown.last_instance, shown.skipped) == (found[-1].instance_id, 0)


async def test_a_list_of_times_ends(env_url: str | None) -> None:
    async with Env(app, url=env_url) as env:
        times = [env.now().replace(microsecond=0) + n * HOUR for n in (1, 3)]
        await env.client.schedules.create("twice", report, at=times)
        await env.advance(DAY)
        assert await due_times(env, "twice") == texts(times)
        assert (await env.client.schedules.show("twice")).state == "ended"


async def test_the_time_of_the_tick_survives_continue_as_new() -> None:
    async with Env(app) as env:
        await env.client.schedules.create("c", carries_on, every=HOUR)
        (tick,) = next_full(env, HOUR, 1)
        await env.advance(HOUR)
        assert [each.output for each in await instances(env, "c")] == [str(tick)]


async def test_jitter_delays_the_start_and_not_the_tick() -> None:
    """Each start by its own part; the tick, and what the code sees of it, stay."""
    async with Env(app) as env:
        wanted = next_full(env, HOUR, 20)
        await env.client.schedules.create("j", report, every=HOUR, jitter=10 * MINUTE)
        await env.advance(20 * HOUR + 10 * MINUTE)
        found = (await instances(env, "j"))[:20]
        assert (await due_times(env, "j"))[:20] == texts(wanted)  # another may be due meanwhile
        ended = {each.instance_id: each.updated_at for each in found}
        delays = [at - tick for at, tick in zip(ended.values(), wanted, strict=True)]
        assert all(timedelta(0) <= delay <= 10 * MINUTE for delay in delays)
        assert len({round(delay.total_seconds()) for delay in delays}) > 10


# --- overlap


async def test_overlap_skip(env_url: str | None) -> None:
    """While an instance runs, ticks start nothing, and are counted."""
    async with Env(app, url=env_url) as env:
        await env.client.schedules.create("s", slow, every=HOUR)
        ticks = next_full(env, HOUR, 5)
        await env.advance(3 * HOUR)
        (first,) = await instances(env, "s")
        shown = await env.client.schedules.show("s")
        assert (shown.is_running, shown.skipped) == (True, 2)
        await env.client.raise_event(first.instance_id, "go")
        await env.advance(HOUR)
        assert await due_times(env, "s") == texts([ticks[0], ticks[3]])


async def test_overlap_queue(env_url: str | None) -> None:
    """One tick waits for the end of the instance, and starts then with its own due time; others are skipped."""
    async with Env(app, url=env_url) as env:
        await env.client.schedules.create("q", slow, every=HOUR, overlap="queue")
        ticks = next_full(env, HOUR, 5)
        await env.advance(3 * HOUR)
        (first,) = await instances(env, "q")
        shown = await env.client.schedules.show("q")
        assert (shown.queued, shown.skipped) == (ticks[1], 1)
        await env.client.raise_event(first.instance_id, "go")
        await env.run_until_idle()
        assert await due_times(env, "q") == texts(ticks[:2])
        assert (await env.client.schedules.show("q")).queued is None


async def test_overlap_allow() -> None:
    async with Env(app) as env:
        await env.client.schedules.create("a", slow, every=HOUR, overlap="allow")
        ticks = next_full(env, HOUR, 3)
        await env.advance(3 * HOUR)
        assert await due_times(env, "a") == texts(ticks)
        assert {each.status for each in await instances(env, "a")} == {"running"}


async def test_overlap_cancel(env_url: str | None) -> None:
    """The instance of the tick before is asked to end, and the next one starts when it has."""
    async with Env(app, url=env_url) as env:
        await env.client.schedules.create("c", slow, every=HOUR, overlap="cancel")
        ticks = next_full(env, HOUR, 3)
        await env.advance(3 * HOUR)
        assert await due_times(env, "c") == texts(ticks)
        found = await instances(env, "c")
        assert [each.status for each in found] == ["cancelled", "cancelled", "running"]
        assert found[0].error is not None
        assert "the next tick of the schedule 'c' is due" in found[0].error.message


# --- missed ticks


async def outage(env: Env, by: timedelta) -> None:
    """No worker runs for this time."""
    await env.run_until_idle()
    await env.crash(0, restart=False)
    await env.advance(by)
    await env._start_worker("worker-9")
    await env.run_until_idle()


async def test_a_missed_tick_is_fired_within_a_minute(env_url: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """Only the latest one, and a worker logs which are not."""
    async with Env(app, url=env_url) as env:
        await env.client.schedules.create("m", report, every=10.0)
        ticks = next_full(env, timedelta(seconds=10), 12)
        with caplog.at_level(logging.WARNING):
            await outage(env, 2 * MINUTE)
        assert await due_times(env, "m") == texts(ticks[-1:])
        assert f"ticks from {texts(ticks)[0]} on were missed" in caplog.text


async def test_a_missed_tick_is_not_fired_later() -> None:
    async with Env(app) as env:
        await env.client.schedules.create("m", report, every=HOUR)
        first, *_ = next_full(env, HOUR, 1)
        await outage(env, first - env.now() + 2 * MINUTE)
        assert await instances(env, "m") == []
        await env.advance(HOUR)
        assert await due_times(env, "m") == texts([first + HOUR])


async def test_a_catch_up_window(env_url: str | None) -> None:
    """All ticks within it, oldest first, and no older one; more than one step fires."""
    async with Env(app, url=env_url) as env:
        await env.client.schedules.create("w", report, every=MINUTE, catch_up=3 * HOUR, overlap="allow")
        ticks = next_full(env, MINUTE, 6 * 60)
        await outage(env, 6 * HOUR)
        expected = [each for each in ticks if each >= env.now() - 3 * HOUR]
        assert len(expected) >= 180
        assert await due_times(env, "w") == texts(expected)


@pytest.mark.parametrize("overlap", [{}, {"overlap": "skip"}, {"overlap": "queue"}, {"overlap": "allow"}])
@pytest.mark.parametrize("catch_up", [3 * HOUR, None])
async def test_what_a_catch_up_window_covers_is_fired_with_each_overlap(
    overlap: dict[str, Any], catch_up: timedelta | None
) -> None:
    """The overlap is for ticks that come while an instance runs."""
    async with Env(app) as env:
        await env.client.schedules.create("m", report, every=MINUTE, catch_up=catch_up, **overlap)
        ticks = next_full(env, MINUTE, 121)
        await outage(env, 2 * HOUR)
        late = next_full(env, MINUTE, 1)[0]
        await env.advance(late - env.now())
        missed = [each for each in ticks if each < late] if catch_up else [late - MINUTE]
        assert await due_times(env, "m") == texts([*missed, late])
        shown = await env.client.schedules.show("m")
        assert (shown.queued, shown.queued_until) == (None, None)
        assert shown.skipped == 0 or catch_up is None


@pytest.mark.slow_cases(r"\[new")
@pytest.mark.parametrize("overlap", ["skip", "queue"])
async def test_missed_ticks_run_one_after_the_other(overlap: Any, env_url: str | None) -> None:
    """Also when an instance runs that began before; a tick that comes while they wait, waits behind them. Ticks that
    have become older than the window meanwhile are not fired, and the overlap holds again when none waits.
    """
    async with Env(app, url=env_url) as env:
        await env.client.schedules.create("m", slow, every=HOUR, catch_up=5 * HOUR, overlap=overlap)
        ticks = next_full(env, HOUR, 11)
        await env.advance(ticks[0] - env.now())
        await outage(env, 3 * HOUR)
        shown = await env.client.schedules.show("m")
        assert (await due_times(env, "m"), shown.queued, shown.skipped) == (texts(ticks[:1]), ticks[1], 0)
        assert "and those missed until" in (await env.client.schedules.explain(["m"]))["m"].sentence
        await go_on(env, 1)
        assert await due_times(env, "m") == texts(ticks[:2])
        await env.advance(HOUR)  # another is due, and waits
        await go_on(env, 1)
        assert await due_times(env, "m") == texts(ticks[:3])
        await env.advance(4 * HOUR)
        await go_on(env, 1)
        kept = [each for each in ticks if env.now() - 5 * HOUR <= each <= env.now()]
        await go_on(env, len(kept))
        assert await due_times(env, "m") == texts(ticks[:3] + kept)
        assert (await env.client.schedules.show("m")).queued is None


async def go_on(env: Env, times: int) -> None:
    """Let the instance that runs end, and those that follow."""
    for _ in range(times):
        for each in [each for each in await instances(env, "m") if each.status == "running"]:
            await env.client.raise_event(each.instance_id, "go")
        await env.run_until_idle()


async def test_a_clock_that_jumps_back_repeats_nothing() -> None:
    """The ticks that were fired stay fired."""
    async with Env(app) as env:
        await env.client.schedules.create("b", report, every=HOUR, catch_up=DAY, overlap="allow")
        await env.advance(3 * HOUR)
        before = await due_times(env, "b")
        await env._database.jump(env._database.now() - 7200, (), ())
        await env.run_until_idle()
        await env.advance(3 * HOUR)
        assert (await due_times(env, "b"))[: len(before)] == before
        assert len(await due_times(env, "b")) == len(before) + 1


async def test_a_crash_in_a_tick_loses_nothing(env_url: str | None) -> None:
    """Whichever worker fires it: each tick has one instance."""
    async with Env(app, url=env_url, workers=3) as env:
        await env.client.schedules.create("k", report, every=HOUR, overlap="allow")
        ticks = next_full(env, HOUR, 6)
        for number in (0, 1, 2):
            await env.advance(HOUR)
            await env.crash(number)
            await env.advance(HOUR)
        assert await due_times(env, "k") == texts(ticks)


async def test_a_quota_delays_ticks(caplog: pytest.LogCaptureFixture) -> None:
    """A tick that may not start is due until it may, and others go on."""
    async with Env(app) as env:
        await env.client.schedules.create("q", report, every=HOUR, overlap="allow", catch_up=DAY)
        await env.client.set_quotas(Quotas(instances=1))
        with caplog.at_level(logging.WARNING):
            await env.advance(3 * HOUR)
        assert len(await instances(env, "q")) == 1
        assert caplog.text.count("its tick is late") == 1
        (shown,) = await env.client.schedules.list()
        assert "its tick is late" in (shown.note or "")
        await env.client.set_quotas(Quotas())
        await env.advance(MINUTE)
        assert len(await instances(env, "q")) == 3
        (shown,) = await env.client.schedules.list()
        assert shown.note is None


@pytest.mark.slow_cases(r"\[new")
async def test_ticks_that_are_refused_hide_no_others(env_url: str | None) -> None:
    """More of them than one look at what is due finds, all older; they go behind, and are fired once they may be."""
    async with Env(app, url=env_url) as env:
        count = SCHEDULE_STEP + 20
        for number in range(count):
            await env.client.schedules.create(f"job-{number:03}", report, at=[env.now() + MINUTE], catch_up=DAY)
        await env.client.schedules.create("behind", affinity.ExternalEvent("nobody", "tick"), every=MINUTE)
        await env.client.set_quotas(Quotas(instances=1))
        await env.advance(7 * MINUTE)
        (shown,) = [one for one in await env.client.schedules.list() if one.name == "behind"]
        assert shown.skipped == 7, "it was fired, and nobody had its event"
        await env.client.set_quotas(Quotas())
        await env.advance(2 * MINUTE)
        assert sum([len(await instances(env, f"job-{number:03}")) for number in range(count)]) == count


@pytest.mark.slow_cases(r"\[new")
async def test_a_schedule_that_this_worker_cannot_read_leaves_the_others_alone(
    env_url: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a later release, or of a zone that only another machine knows. It is logged once, and shown."""
    async with Env(app, url=env_url) as env:
        await env.client.schedules.create("good", report, every=HOUR)
        provider = env.client._provider
        for name, spec in (("later", '{"overlap":"later"}'), ("zone", '{"cron":"0 * * * *","zone":"Mars/Base"}')):
            row = ScheduleRow(name=name, generation="g", spec=spec, next_due=env.now() + MINUTE)
            await schedules_of(provider).write_schedules([ScheduleWrite(row=row)])
        with caplog.at_level(logging.WARNING):
            await env.advance(HOUR)
        assert len(await instances(env, "good")) == 1
        assert [caplog.text.count(f"schedule {name}: its tick is late") for name in ("later", "zone")] == [1, 1]
        shown = {each.name: each.note or "" for each in await env.client.schedules.list()}
        assert "cannot be read" in shown["later"]
        assert "Mars/Base" in shown["zone"]


async def test_a_queued_tick_outlasts_another_target() -> None:
    """It sends the event then."""
    async with Env(app) as env:
        await env.client.schedules.create("q", slow, every=HOUR, overlap="queue")
        await env.advance(2 * HOUR)
        (first,) = await instances(env, "q")
        handle = await env.client.start(counter, instance_id="i")
        (_, queued, *_) = texts([(await env.client.schedules.show("q")).queued or env.now()] * 2)
        await env.client.schedules.update("q", affinity.ExternalEvent("i", "tick"), overlap="skip")
        await env.client.raise_event(first.instance_id, "go")
        await env.advance(2 * HOUR)
        assert (await handle.wait())[0] == queued


async def test_an_update_keeps_a_tick_that_is_due() -> None:
    """Unless the ticks themselves change."""
    async with Env(app) as env:
        await env.client.schedules.create("u", report, every=HOUR, catch_up=DAY)
        (tick,) = next_full(env, HOUR, 1)
        await env.run_until_idle()
        await env.crash(0, restart=False)
        await env.advance(tick - env.now() + MINUTE)
        assert (await env.client.schedules.update("u", overlap="allow")).next_ticks[0] == tick
        assert (await env.client.schedules.update("u", every=2 * HOUR)).next_ticks[0] > env.now()


# --- events


async def test_an_event_to_an_instance(env_url: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """Each tick sends one, with its due time; one that nothing receives is logged and counted."""
    async with Env(app, url=env_url) as env:
        await env.client.schedules.create("e", affinity.ExternalEvent("i", "tick"), every=HOUR)
        handle = await env.client.start(counter, instance_id="i")
        ticks = next_full(env, HOUR, 4)
        await env.advance(3 * HOUR)
        assert await handle.wait() == texts(ticks[:3])
        with caplog.at_level(logging.WARNING):
            await env.advance(HOUR)
        shown = await env.client.schedules.show("e")
        assert (shown.skipped, shown.note) == (1, "'i': finished")
        assert "the event of a tick was not delivered to 'i': finished" in caplog.text


async def test_an_event_to_a_conversation(env_url: str | None) -> None:
    """Which begins with it, or goes on."""
    async with Env(app, url=env_url) as env:
        target = support.scheduled(UserMessage("Any news?"), "chat-1")
        await env.client.schedules.create("talk", target, every=HOUR)
        await env.advance(2 * HOUR)
        assert await _received(env, "chat-1") == 2


async def test_a_conversation_gets_all_missed_events(env_url: str | None) -> None:
    """An event has no overlap, to whichever kind of receiver."""
    async with Env(app, url=env_url) as env:
        window, create = timedelta(minutes=5), env.client.schedules.create
        target = support.scheduled(UserMessage("Any news?"), "chat-1")
        shown = await create("talk", target, every=1.0, catch_up=window)
        assert shown.overlap == "allow"
        await create("each", support.scheduled_each(UserMessage("x")), every=1.0, catch_up=window)
        ticks = next_full(env, timedelta(seconds=1), 40)
        await outage(env, timedelta(seconds=27))
        assert (await due_times(env, "talk"))[:27] == (await due_times(env, "each"))[:27] == texts(ticks[:27])
        with pytest.raises(affinity.errors.InvalidSchedule, match="no overlap"):
            await create("q", target, every=1.0, overlap="queue")
        with pytest.raises(affinity.errors.InvalidSchedule, match="no overlap"):
            await env.client.schedules.update("talk", overlap="cancel")
        await env.client.schedules.update("talk", report, overlap="queue")
        assert (await env.client.schedules.show("talk")).overlap == "queue"


async def test_an_event_to_each_conversation(env_url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the filter finds; in steps, of which one that is repeated sends nothing twice."""
    monkeypatch.setattr("affinity.conversation.scheduled.MAX_PAGE", 2)
    async with Env(app, url=env_url, workers=2) as env:
        for n in range(7):
            talk = env.client.conversation(support, f"chat-{n}")
            await talk.create(labels={"plan": "pro" if n < 5 else "free"})
        await env.client.conversation(support, "chat-0").terminate()
        target = support.scheduled_each(UserMessage("Hello"), labels={"plan": "pro"})
        await env.client.schedules.create("each", target, at=[env.now() + HOUR])
        env.fail_commits(2)
        await env.advance(2 * HOUR)
        received = {n: await _received(env, f"chat-{n}") for n in range(7)}
        assert received == {0: 0, 1: 1, 2: 1, 3: 1, 4: 1, 5: 0, 6: 0}
        (run,) = await instances(env, "each")
        assert run.output == {"sent": 4, "refused": 0}


async def _received(env: Env, conversation_id: str) -> int:
    talk = env.client.conversation(support, conversation_id)
    return [each.kind async for each in talk.events(follow=False)].count("user.message")


# --- declared in code


def version(name: str, **schedules: Any) -> tuple[affinity.App, affinity.RuntimeOptions]:
    """One version of an app with these schedules, each with its options."""
    made = affinity.App("shop")
    made.include(app)
    for schedule, options in schedules.items():
        made.schedule(schedule, report, **options)
    return made, affinity.RuntimeOptions.make(code_version=name)


async def use(env: Env, made: affinity.App, options: affinity.RuntimeOptions, name: str) -> None:
    """Start a worker of another version beside the others."""
    env._app, env._options = made, options
    await env._start_worker(name)
    await env.run_until_idle()


async def test_declared_schedules_follow_the_newest_code(env_url: str | None) -> None:
    """The new version changes one, drops one and adds one; the old worker, which runs on, leaves them so."""
    old, old_options = version("1", a={"every": HOUR}, b={"every": HOUR})
    new, new_options = version("2", a={"every": 2 * HOUR}, c={"every": HOUR})
    async with Env(old, url=env_url, options=old_options) as env:
        await env.run_until_idle()
        first = {each.name: each for each in await env.client.schedules.list()}
        assert {name: (each.state, each.app, each.code_version) for name, each in first.items()} == {
            "a": ("active", "shop", "1"),
            "b": ("active", "shop", "1"),
        }
        await use(env, new, new_options, "new")
        await env.advance(5 * MINUTE)  # the old worker has looked again
        found = {each.name: each for each in await env.client.schedules.list()}
        assert {name: (each.state, each.code_version) for name, each in found.items()} == {
            "a": ("active", "2"),
            "b": ("undeclared", "2"),
            "c": ("active", "2"),
        }
        assert found["a"].timing == "every 2:00:00"
        assert found["a"].generation == first["a"].generation
        assert found["b"].note == "code 2 no longer declares it"


async def test_a_version_that_is_rolled_back_to_is_the_newest() -> None:
    """When the new workers are gone, the old ones declare their schedules again, and resume what was paused."""
    old, old_options = version("1", a={"every": HOUR}, b={"every": HOUR})
    new, new_options = version("2", a={"every": 2 * HOUR})
    async with Env(old, options=old_options) as env:
        await env.run_until_idle()
        await use(env, new, new_options, "new")
        assert (await env.client.schedules.show("b")).state == "undeclared"
        await env.drain("new")
        await env.advance(MINUTE)
        found = {each.name: (each.state, each.timing) for each in await env.client.schedules.list()}
        assert found == {"a": ("active", "every 1:00:00"), "b": ("active", "every 1:00:00")}


async def test_a_pause_outlasts_new_code() -> None:
    """And its own schedules belong to a client."""
    old, old_options = version("1", a={"every": HOUR})
    new, new_options = version("2", a={"every": 2 * HOUR}, mine={"every": HOUR})
    async with Env(old, options=old_options) as env:
        await env.run_until_idle()
        await env.client.schedules.pause("a", "holidays")
        await env.client.schedules.create("mine", slow, every=DAY)
        await use(env, new, new_options, "new")
        shown = await env.client.schedules.show("a")
        assert (shown.state, shown.note, shown.timing) == ("paused", "holidays", "every 2:00:00")
        assert (await env.client.schedules.show("mine")).target == "slow"
        assert [each.timing for each in [await env.client.schedules.resume("a")]] == ["every 2:00:00"]


async def test_a_name_that_is_taken_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    declared, options = version("1", mine={"every": HOUR})
    async with Env(declared, workers=0, options=options) as env:
        await env.client.schedules.create("mine", slow, every=DAY)
        with caplog.at_level(logging.ERROR):
            await env._start_worker("worker-0")
            await env.run_until_idle()
        assert (await env.client.schedules.show("mine")).app is None
        assert "schedule mine: a client has created it" in caplog.text
