"""The checker of `rest` finds each kind of row that is left over, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final, Self, TypeAlias

import anyio
import pytest
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, ToolConfirmation, UserMessage
from affinity.orchestration.events import ActivityCompleted
from affinity.orchestration.wire import encode_event
from affinity.session import SessionMetadata
from affinity.testing import Env
from tests.programs.rest import RULES, NotAtRest, check, check_queues, find
from tests.programs.rest_work import misplaced
from tests.programs.tables import Execution, Row, Tables, read_tables

ONLY: Final = {
    "sqlite": {"counters", "journal_labels", "session_labels", "session_participants", "sqlite_sequence"},
    "postgres": {
        "granted_roles",
        "instance_counts",
        "instances_by_status",
        "limit_admissions",
        "limit_charges",
        "session_orders",
        "sweeps",
    },
}
"""Tables of one database only."""


class Chat(BaseModel):
    """A state."""

    said: list[str] = []


def described(chat: Chat) -> SessionMetadata:
    return SessionMetadata(labels={"tier": "gold"}, participants=("ann",))


chats = affinity.Sessions(Chat, kind="chat", metadata=described)
support = affinity.Conversations(Chat, kind="support", metadata=described)
closed = affinity.Limit("closed", concurrency=0)
app = affinity.App("rest", limits=[closed])
app.include(chats)
hello = affinity.Event("hello", str, reply=str)


@support.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    for event in wake.events:
        if isinstance(event, UserMessage) and event.text == "ask":
            wake.require(ToolConfirmation(tool="refund", arguments={}))
        elif isinstance(event, UserMessage) and event.text == "delegate":
            await wake.delegate(support, f"{wake.conversation_id}/child", UserMessage("ask"))
        else:
            wake.append(AgentMessage("yes"))


app.include(support)


@app.activity
async def remember(ctx: affinity.ActivityContext, text: str) -> int:
    async with chats.open(ctx) as chat:
        chat.said.append(text)
    return len(chat.said)


@app.activity
async def hang(ctx: affinity.ActivityContext) -> None:
    await anyio.sleep_forever()


@app.orchestration
async def remembering(ctx: affinity.OrchestrationContext, session: str) -> int:
    return await ctx.schedule_activity(remember, "x").on_session(session, ordered=True)


@app.orchestration
async def waiting(ctx: affinity.OrchestrationContext) -> None:
    received = await ctx.schedule_wait(hello)
    received.reply("hi")
    moved = ctx.schedule_session_moved("held")
    go = ctx.schedule_wait("go", str, hold_session="held", hold_for=600_000)
    await ctx.select(moved, go)


@app.orchestration
async def parent(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_sub_orchestration(waiting, instance_id=f"{ctx.instance_id}/child")


@app.orchestration
async def again(ctx: affinity.OrchestrationContext, left: int) -> None:
    if left:
        ctx.continue_as_new(left - 1)
    await ctx.schedule_timer(10)
    raise ValueError("it is broken")


@app.orchestration
async def hanging(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_activity(hang)


@app.orchestration
async def limited(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_activity(hang).limited(closed)


async def fill(env: Env) -> None:
    """Leave something in nearly every table that may have something at rest."""
    client = env.client
    run = await client.start(waiting, instance_id="w")
    await client.start(parent, instance_id="p")
    assert await run.ask(hello("x"), idempotency_key="k") == "hi"
    await (await client.start(remembering, "s", instance_id="r", labels={"tier": "gold"})).wait()
    await client.start(again, 2, instance_id="a")
    await client.start(limited, instance_id="l")
    talk = client.conversation(support, "c")
    await talk.ask(UserMessage("hello"), title="Hello", owner="ann", labels={"tier": "gold"})
    for text in ("ask", "delegate"):
        await client.conversation(support, text).ask(UserMessage(text))
    await (await talk.fork("f1")).ask(UserMessage("more"))
    await (await talk.fork("f2")).delete()
    await (await client.conversation(support, "f1").fork("f3")).terminate()
    await client.conversation(support, "f1").delete()
    await client.start("unknown", instance_id="u")
    await env.run_until_idle()  # until it is suspended
    await talk.ask(UserMessage("hello again"))  # a worker holds the session again
    await env.run_until_idle()


class Rows:
    """The tables of a snapshot, to be changed."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def __getitem__(self, table: str) -> list[dict[str, Any]]:
        return self.tables.rows[table]  # type: ignore[return-value]

    def one(self, table: str, **where: Any) -> dict[str, Any]:
        """The first row of a table with these values."""
        return next(row for row in self[table] if all(row[name] == value for name, value in where.items()))

    def change(self, table: str, where: Mapping[str, Any], **values: Any) -> Self:
        """Give a row other values."""
        self.one(table, **where).update(values)
        return self

    def drop(self, table: str, **where: Any) -> Self:
        """Remove a row."""
        self[table].remove(self.one(table, **where))
        return self

    def add(self, table: str, **values: Any) -> Self:
        """Add a row."""
        self[table].append(values)
        return self

    def copy(self, table: str, where: Mapping[str, Any], **values: Any) -> Self:
        """Add a row as one that is there, with other values."""
        return self.add(table, **{**self.one(table, **where), **values})

    def queue(self, **values: Any) -> Self:
        """Put the next wake of a conversation, which is parked, into the queue of work."""
        wake = self.one("parked_items", instance_id="c")
        self["parked_items"].remove(wake)
        none = dict.fromkeys(("lock_token", "lock_worker", "lock_incarnation", "locked_until", "attend_at", "tag"))
        none |= dict.fromkeys(("gate", "limited", "gate_session"))
        item = {key: wake[key] for key in ("instance_id", "execution_id", "activity_id", "name", "session_id")}
        order = {"order_session": None, "order_number": None, "attempts": 0, "failures": 0}
        held = self.one("sessions", session_id="c")["worker_id"]
        now = {"route": f"w:{held}", "visible_at": self.now}
        return self.add("worker_queue", **{**none, **item, **order, **now, **values})

    @property
    def now(self) -> float:
        return self.tables.now

    @property
    def worker(self) -> dict[str, Any]:
        return self["workers"][0]

    def journal(self, session_id: str, **values: Any) -> Self:
        """Give the journal of a conversation other values."""
        return self.change("journals", {"session_id": session_id}, **values)

    def of(self, session_id: str, **values: Any) -> dict[str, Any]:
        """The start of a row of that journal."""
        return {"journal_id": self.one("journals", session_id=session_id)["journal_id"], **values}

    def message(self, **values: Any) -> Self:
        """Queue a message."""
        payload = '{"execution":0,"event":{"type":"cancel_requested","reason":""}}'
        row = {"id": 0, "instance_id": "w", "route": "w:worker-0", "timer_execution": None, "timer_id": None}
        return self.add("orchestrator_queue", **{**row, "visible_at": self.now, "payload": payload, **values})

    def trend(self, **values: Any) -> Self:
        """Add the counts of a minute."""
        none = dict.fromkeys(("started", "completed", "failed", "cancelled", "retries"), 0)
        return self.add("trends", kind="orchestration", minute=0, durations="{}", **{**none, **values})

    def quota(self, **values: Any) -> Self:
        """Set a quota, without what goes with it."""
        return self.add("quotas", **{"instances": None, "unread_events": None, "instance_bytes": None, **values})

    def fail_wake(self) -> Self:
        """Let the first wake of a conversation have failed."""
        execution = Execution("c", 1, [row for row in self["history"] if row["instance_id"] == "c"])
        number, event = next(
            (n, event) for n, event in execution.events.items() if isinstance(event, ActivityCompleted)
        )
        failed = encode_event(replace(event, result='{"outcome":"failed"}'))
        return self.change("history", {"instance_id": "c", "event_id": number}, event=failed)


Plant: TypeAlias = Callable[[Rows], object]

PLANTS: Final[Mapping[str, tuple[Plant, ...]]] = {
    "limits": (lambda at: at.add("limits", name="x", app="", code=""),),
    "limit_keys": (
        lambda at: at.change("limit_keys", {"limit_name": "closed"}, in_use=1),
        lambda at: at.change("limit_keys", {"limit_name": "closed"}, waiting=0),
    ),
    "limit_lines": (lambda at: at["limit_lines"][0].update(waiting=7),),
    "limit_line_keys": (lambda at: at["limit_line_keys"].clear(),),
    "limited_work": (
        lambda at: at.drop("worker_queue", instance_id="l"),
        lambda at: at["limited_work"][0].update(admitted_at=1.0),
        lambda at: at["limited_work"].clear(),
    ),
    "limit_charges": (lambda at: at.add("limit_charges", limit_name="gone", units=1),),
    "limit_admissions": (
        lambda at: at["limit_admissions"].clear(),
        lambda at: at["limit_admissions"][0].update(drifts=1),
    ),
    "instances": (
        lambda at: at.change("instances", {"instance_id": "r"}, event_count=1),
        lambda at: at.change("instances", {"instance_id": "r"}, generation=""),
        lambda at: at.change("instances", {"instance_id": "r"}, status="failed", error="{}"),
        lambda at: at.change("instances", {"instance_id": "r"}, status="running"),
        lambda at: at.change("instances", {"instance_id": "r"}, error="{}"),
        lambda at: at.change("instances", {"instance_id": "r"}, next_start="{}"),
        lambda at: at.change("instances", {"instance_id": "w"}, status="completed"),
        lambda at: at.change("instances", {"instance_id": "w"}, status="pending"),
        lambda at: at.change("instances", {"instance_id": "w"}, claims=1),
        lambda at: at.drop("instances", instance_id="p/child"),
        lambda at: at.drop("parked_items", instance_id="c"),
    ),
    "history": (
        lambda at: at.drop("instances", instance_id="r"),
        lambda at: at.drop("history", instance_id="r", event_id=2),
        lambda at: at.copy("history", {"instance_id": "r", "event_id": 3}, event_id=4),
        lambda at: at.copy("history", {"instance_id": "r", "event_id": 4}, event_id=5),
        lambda at: at.change("history", {"instance_id": "r", "event_id": 1}, recorded_at=None),
        lambda at: at.change("history", {"instance_id": "a", "execution_id": 1}, execution_id=9),
    ),
    "ended_executions": (
        lambda at: at.drop("ended_executions", instance_id="r"),
        lambda at: at.drop("ended_executions", instance_id="a", execution_id=1),
        lambda at: at.change("ended_executions", {"instance_id": "r"}, is_last=False),
        lambda at: at.copy("ended_executions", {"instance_id": "r"}, instance_id="gone"),
        lambda at: at.copy("ended_executions", {"instance_id": "r"}, instance_id="w"),
    ),
    "instances_by_status": (
        lambda at: at.drop("instances_by_status", instance_id="a"),
        lambda at: at.copy("instances_by_status", {"instance_id": "a"}, instance_id="r"),
    ),
    "instance_labels": (
        lambda at: at.drop("instance_labels", instance_id="r"),
        lambda at: at.copy("instance_labels", {"instance_id": "r"}, instance_id="gone"),
        lambda at: at.copy("instance_labels", {"instance_id": "r"}, key="other"),
        lambda at: at.change("instance_labels", {"instance_id": "r"}, value="silver"),
        lambda at: at.change("instance_labels", {"instance_id": "r"}, phase="open"),
        lambda at: at.change("instance_labels", {"instance_id": "r"}, created_at=0.0),
        lambda at: at.change("instances", {"instance_id": "w"}, labels='{"tier":"gold"}'),
    ),
    "suspensions": (
        lambda at: at.change("suspensions", {"instance_id": "u"}, resumed_at=1.0),
        lambda at: at.drop("suspensions", instance_id="u"),
        lambda at: at.copy("suspensions", {"instance_id": "u"}, instance_id="gone"),
    ),
    "instance_sizes": (
        lambda at: at.add("instance_sizes", instance_id="w", generation="", execution_id=1, event_count=1, bytes=1),
        lambda at: at.quota(instance_bytes=1).add("instance_sizes", **at.one("instances", instance_id="r"), bytes=1),
    ),
    "instance_counts": (lambda at: at.quota(instances=9).add("instance_counts", part=7, instances=1),),
    "counters": (
        lambda at: at.quota(instances=9).add("counters", name="instances", value=1),
        lambda at: at.change("counters", {"name": "epoch"}, value=0),
    ),
    "message_keys": (
        lambda at: at.copy("message_keys", {"key": "k"}, instance_id="gone"),
        lambda at: at.copy("message_keys", {"key": "k"}, key="other"),
    ),
    "condemned_blobs": (lambda at: at.add("condemned_blobs", digest="d", condemned_at=at.now),),
    "trends": (
        lambda at: at.trend(name="", completed=1),
        lambda at: at.trend(name="x", started=1),
    ),
    "trend_rounds": (lambda at: at.add("trend_rounds").add("trend_rounds"),),
    "failures": (
        lambda at: at.copy("failures", {"instance_id": "a"}, instance_id="gone"),
        lambda at: at.drop("failures", instance_id="a", kind="orchestration"),
        lambda at: at.fail_wake(),
    ),
    "orphan_blobs": (lambda at: at.add("orphan_blobs", digest="d", used_at="t", size=1, found_at=at.now),),
    "exported_blobs": (lambda at: at.add("exported_blobs", digest="d", exported_at=at.now),),
    "blob_rounds": (lambda at: at.add("blob_rounds", part=1, due_at=at.now).add("blob_rounds", part=1, due_at=at.now),),
    "instance_values": (
        lambda at: at.add("instance_values", instance_id="gone", key="k", value="1"),
        lambda at: at.add("instance_values", instance_id="r", key="k", value="1"),
        lambda at: at.change("instances", {"instance_id": "r"}, value_bytes=1),
    ),
    "orchestrator_queue": (
        lambda at: at.message(),
        lambda at: at.message(instance_id="r"),
        lambda at: at.message(instance_id="gone"),
        lambda at: at.message(route="suspended", visible_at=at.now + 9),
        lambda at: at.message(instance_id="u", route="new"),
        lambda at: at.message(timer_execution=1, timer_id=1, visible_at=at.now + 9),
    ),
    "worker_queue": (
        lambda at: at.queue(**lock(at)),
        lambda at: at.queue(route="new"),
        lambda at: at.queue(route="blocked"),
        lambda at: at.queue(activity_id=1),
        lambda at: at.queue(name="other"),
        lambda at: at.queue(instance_id="gone"),
        lambda at: at.queue(instance_id="r"),
        lambda at: at.queue(failures=2, attempts=1),
        lambda at: at.queue(attend_at=at.now),
        lambda at: at.queue(order_session="c", order_number=1, session_id=None, route="blocked"),
        lambda at: at.queue(order_session="c", order_number=1).copy(
            "worker_queue", {"instance_id": "c"}, order_number=2
        ),
    ),
    "session_orders": (lambda at: at.queue(order_session="c", order_number=1),),
    "parked_items": (
        lambda at: at.drop("instances", instance_id="c"),
        lambda at: at.journal("c", processed=0),
        lambda at: at.journal("c", closed=True),
        lambda at: at.change("parked_items", {"instance_id": "c"}, activity_id=1),
    ),
    "workers": (lambda at: at.worker.update(capacity=0),),
    "sessions": (
        lambda at: at.change("sessions", {"session_id": "c"}, worker_id="gone"),
        lambda at: at.change("sessions", {"session_id": "c"}, epoch=1_000_000),
        lambda at: at.change("sessions", {"session_id": "c"}, freed_by="idle"),
        lambda at: at.change("sessions", {"session_id": "c"}, next_worker="worker-0"),
        lambda at: at.change("sessions", {"session_id": "c"}, next_worker="gone", next_reason="moved"),
    ),
    "session_moves": (
        lambda at: at.change("sessions", {"session_id": "c"}, worker_id="other"),
        lambda at: at.copy("session_moves", {"session_id": "c"}, epoch=1_000_000, from_worker=None),
        lambda at: at.copy("session_moves", {"session_id": "c"}, epoch=0, to_worker="gone").change(
            "session_moves", {"session_id": "c"}, from_worker="other"
        ),
    ),
    "session_holds": (
        lambda at: at.copy("session_holds", {"instance_id": "w"}, hold_id=1),
        lambda at: at.copy("session_holds", {"instance_id": "w"}, instance_id="r"),
        lambda at: at.change("session_holds", {"instance_id": "w"}, session_id="other"),
        lambda at: at.change("session_holds", {"instance_id": "w"}, until=at.now - 2),
    ),
    "session_watches": (
        lambda at: at.copy("session_watches", {"instance_id": "w"}, instance_id="r"),
        lambda at: at.copy("session_watches", {"instance_id": "w"}, session_id="other"),
    ),
    "resources": (
        lambda at: at.add("resources", **resource(handle="{}")),
        lambda at: at.add("resources", **resource(handle="{}", taken_until=1.0)),
        lambda at: at.add("resources", **resource(handle=None)),
    ),
    "schedules": (
        lambda at: at.add("schedules", **schedule(next_due=at.now)),
        lambda at: at.add("schedules", **schedule(next_due=at.now + 9, paused="operator")),
        lambda at: at.add("schedules", **schedule(queued=at.now, running="gone")),
        lambda at: at.add("schedules", **schedule(queued=at.now, running=None, paused="operator")),
        lambda at: at.add("schedules", **schedule(next_due=at.now + 9, last_due=at.now + 9)),
    ),
    "session_states": (
        lambda at: at.change("session_states", {"session_id": "s"}, epoch=1_000_000),
        lambda at: at.change("session_states", {"session_id": "s"}, generation=""),
        lambda at: at.change("session_states", {"session_id": "s"}, version=0),
        lambda at: at.copy("session_moves", {"session_id": "s"}, epoch=1_000, moved_at=0.0),
    ),
    "session_labels": (
        lambda at: at.drop("session_labels", session_id="s"),
        lambda at: at.copy("session_labels", {"session_id": "s"}, session_id="gone"),
    ),
    "journal_labels": (
        lambda at: at.drop("journal_labels", **at.of("c")),
        lambda at: at.copy("journal_labels", at.of("c"), journal_id=99),
    ),
    "session_participants": (
        lambda at: at.drop("session_participants", session_id="s"),
        lambda at: at.copy("session_participants", {"session_id": "s"}, session_id="gone"),
    ),
    "journals": (
        lambda at: at.journal("c", size=1),
        lambda at: at.journal("c", last_seq=99),
        lambda at: at.journal("c", first_seq=0),
        lambda at: at.journal("c", processed=99),
        lambda at: at.journal("c", closed=True),
        lambda at: at.copy("journals", {"session_id": "c"}, session_id=None, journal_id=99),
        lambda at: at.drop("journals", session_id=None),
        lambda at: at.journal("c", processed=0),
        lambda at: at.journal("f3", processed=0, closed=False),
        lambda at: at.journal("c", processed=0).change("instances", {"instance_id": "c"}, status="completed"),
        lambda at: at.drop("journal_entries", **at.of("c")),
    ),
    "journal_entries": (
        lambda at: at.copy("journal_entries", {}, journal_id=99),
        lambda at: at.change("journal_entries", {}, origin_id=1, origin_seq=None),
    ),
    "journal_wakes": (
        lambda at: at.change("journal_wakes", {}, journal_id=99),
        lambda at: at.change("journal_wakes", {}, wake_id="other"),
        lambda at: at.change("journal_wakes", {}, base=-1, processed=-2),
        lambda at: at.change("journal_wakes", {}, read=99, processed=99),
    ),
    "journal_requests": (
        lambda at: at.change("journal_requests", at.of("ask"), journal_id=99),
        lambda at: at.change("journal_requests", at.of("ask"), seq=99),
        lambda at: at.change("journal_requests", at.of("ask"), expires_at=at.now),
        lambda at: at.journal("ask", closed=True),
        lambda at: at.journal("ask", dropped=99, dropped_seq=99),
    ),
    "journal_delegations": (
        lambda at: at.add("journal_delegations", journal_id=99, delegation_id="d", child="c"),
        lambda at: at.add("journal_delegations", **at.of("c", delegation_id="d", child="none")),
    ),
    "journal_revisits": (
        lambda at: at.add("journal_revisits", **at.of("c", key="k", due_at=at.now)),
        lambda at: at.add("journal_revisits", journal_id=99, key="k", due_at=at.now + 9),
    ),
    "journal_streams": (lambda at: at.add("journal_streams", **at.of("c", wake_id="w", attempt=1)),),
    "journal_steps": (
        lambda at: at.add("journal_steps", **at.of("c", wake_id="w", key="k")),
        lambda at: at.add("journal_steps", journal_id=99, wake_id="run", key="k"),
    ),
    "activity_waits": (
        lambda at: at.add("activity_waits", instance_id="c", execution_id=9, activity_id=9, awaited="d"),
    ),
    "journal_parents": (lambda at: at.add("journal_parents", **at.of("c", parent_id=99)),),
    "timeline": (lambda at: at["timeline"].clear(),),
    "database_identity": (lambda at: at["database_identity"].clear(),),
    "sweeps": (lambda at: at["sweeps"].clear(),),
    "quotas": (lambda at: at.quota().quota(),),
    "rounds": (lambda at: at.add("rounds", name="histories", place=None, removed=0, pause=-1.0, due_at=0.0),),
    "migrations": (lambda at: at.change("migrations", {}, oldest_code=999),),
    "audit": (lambda at: at.add("audit", stated_user="bob", action="cancel"),),
    "granted_roles": (lambda at: at.add("granted_roles", role="other", kind="client"),),
    "sqlite_sequence": (lambda at: at.change("sqlite_sequence", {}, seq=0).message(id=1, visible_at=at.now + 9),),
}
"""For each rule, a change of the tables that it must find."""


def lock(at: Rows) -> Row:
    by = {"lock_worker": at.worker["worker_id"], "lock_incarnation": at.worker["incarnation"]}
    return {"lock_token": "t", "locked_until": at.now + 9, **by}


def schedule(**values: Any) -> Row:
    nothing = dict.fromkeys(("paused", "next_due", "last_due", "running", "queued"))
    return {"name": "s", **nothing, **values}


def resource(**values: Any) -> Row:
    activity = {"instance_id": "r", "execution_id": 1, "activity_id": 2}
    return {"resource_id": "x", "name": "sandbox", "taken_until": None, **activity, **values}


async def test_each_rule_finds_what_is_left_over(env_url: str | None) -> None:
    async with Env(app, url=env_url) as env:
        await fill(env)
        await check(env)
        tables = await read_tables(env)
    here, there = ("sqlite", "postgres") if env_url is None else ("postgres", "sqlite")
    assert RULES.keys() - tables.rows.keys() == ONLY[there], f"rules without a table of {here}"
    assert PLANTS.keys() == RULES.keys()
    missed = []
    for table in tables.rows:
        for number, plant in enumerate(PLANTS[table]):
            planted = Tables(deepcopy(tables.rows), tables.now, tables.last_epoch)
            plant(Rows(planted))
            if not any(each.startswith(f"{table}: ") for each in find(planted)):
                missed.append(f"plant {number} of {table}")
    assert not missed


async def test_what_should_not_be_in_a_queue_is_found_while_workers_run(env_url: str | None) -> None:
    async with Env(app, url=env_url) as env:
        await fill(env)
        await check_queues(env)
        tables = await read_tables(env)

    def found(plant: Plant) -> list[str]:
        planted = Tables(deepcopy(tables.rows), tables.now, tables.last_epoch)
        plant(Rows(planted))
        return [*misplaced(planted)]

    assert not found(lambda at: at.queue(**lock(at)).message())  # it would be wrong at rest
    assert found(lambda at: at.message(timer_execution=1, timer_id=1, visible_at=at.now + 9))
    assert found(lambda at: at.queue(activity_id=1))
    assert found(lambda at: at.queue(route="blocked", order_session="c", order_number=1))


async def test_a_table_without_a_rule_is_found(env_url: str | None) -> None:
    async with Env(app, url=env_url) as env:
        tables = await read_tables(env)
    assert not find(tables)
    tables.rows = {**tables.rows, "novel": []}
    assert find(tables) == ["novel: no rule says what its rows may be"]


async def test_what_runs_is_not_at_rest(env_url: str | None) -> None:
    async with Env(app, url=env_url) as env:
        await env.client.start(hanging, instance_id="h")
        with anyio.fail_after(20):
            while not await env.client.activities("h"):
                await anyio.sleep(0.01)
        with pytest.raises(NotAtRest, match=r"'h' has not ended: .*runs on worker 'worker-0'"):
            await check(env)
