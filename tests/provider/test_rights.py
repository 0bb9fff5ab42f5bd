"""PostgreSQL: what a client's role and a worker's role may do, and what they may not."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, LiteralString

import anyio
import httpx2 as httpx
import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from pydantic import BaseModel

from affinity import (
    ActivityContext,
    App,
    Client,
    Conversations,
    OrchestrationContext,
    RuntimeOptions,
    Start,
    Worker,
    migrate,
)
from affinity.blobs.store.contract import PayloadChange, StoredPayload, blobs_of
from affinity.cli import main
from affinity.client import requests
from affinity.console import create
from affinity.conversation import UserMessage
from affinity.conversation.journal import JournalCreation
from affinity.conversation.kinds import WAKE_MESSAGE, start_of
from affinity.conversation.store.contract import journals_of
from affinity.conversation.store.postgres.lineage import creation_document
from affinity.errors import AccessDenied, InvalidOptions, OrchestrationCancelled
from affinity.provider import change_rights, open_provider
from affinity.provider.contract import (
    FINISHED,
    Generation,
    Incarnation,
    MoveReport,
    Provider,
    Quotas,
    Release,
    Reset,
    WorkerIdentity,
)
from affinity.provider.postgres import migration, rights
from affinity.provider.postgres.parts import Rights, parts
from affinity.provider.postgres.rights import RIGHTS, all_rights
from affinity.provider.schema import Migration
from affinity_conformance.providers.builders import fetch_options, new_instance, profile, state
from affinity_conformance.providers.conversation.driver import creation_of
from tests.provider.roles import CLIENT, DEFINERS, READER, SCALER, WORKER, as_role
from tests.support.waiting import started

pytestmark = pytest.mark.anyio

DATABASES: Final = Path(__file__).parents[2] / "docs/run/databases.md"

ME: Final = WorkerIdentity(worker_id="me", incarnation=Incarnation("me-1"))

app = App("rights")


class Chat(BaseModel):
    """The state of a conversation."""


@app.activity
async def who(_: ActivityContext) -> int:
    return 1


@app.orchestration
async def child(_: OrchestrationContext, n: int) -> int:
    return n


@app.orchestration
async def flow(ctx: OrchestrationContext, _: None) -> int:
    """A bit of everything: a session, a timer, a child, an event."""
    first = await ctx.schedule_activity(who).on_session("s")
    await ctx.schedule_timer(0.01)
    second = await ctx.schedule_sub_orchestration(child, 2)
    return first + second + await ctx.schedule_wait("number", int)


@pytest.fixture
async def url(postgres_migrated: str, admin: psycopg.Connection[Any]) -> str:
    """A database in which both roles have their rights."""
    assert not admin.closed
    for _ in range(2):  # it may be said again
        await change_rights(postgres_migrated, clients=[CLIENT], workers=[WORKER], scalers=[SCALER], readers=[READER])
    return postgres_migrated


async def test_clients_and_workers_need_no_more(url: str) -> None:
    """A worker migrates nothing when there is nothing to migrate; a client starts, raises, cancels, waits and reads."""
    worker = Worker(app, as_role(url, WORKER), RuntimeOptions.make(poll_interval=0.2))
    async with worker, Client(as_role(url, CLIENT)) as client:
        for name in ("a", "b"):
            await client.start(flow, None, instance_id=name)
            await started(client, name)
        await client.raise_event("a", "number", 3)
        assert await client.wait("a", 30) == 6
        await client.cancel("b")
        with pytest.raises(OrchestrationCancelled):
            await client.wait("b", 30)
        assert await client.history("a")
        assert len((await client.list_instances().page()).items) >= 3
        assert [row.worker_id for row in await client.workers()] == [worker.identity.worker_id]
        assert "s" in [row.session_id async for row in client.sessions()]
        assert [(row.session_id, row.reason) for row in await client.session_moves()] == [("s", "new")]
        assert (await client.quotas()).instances is None
        assert await client.session_store.load("s") is None


REFUSED: Final[dict[str, Callable[[Provider], Awaitable[object]]]] = {
    "register_worker": lambda p: p.register_worker(ME, 1.0, {}, profile=profile()),
    "renew_worker": lambda p: p.renew_worker(ME, 1.0),
    "drain_worker": lambda p: p.drain_worker(ME),
    "fetch_work_item": lambda p: p.fetch_work_item(ME, fetch_options()),
    "fetch_orchestration_item": lambda p: p.fetch_orchestration_item(ME, limit=1, names=(), unknown_after=1.0),
    "release_unknown_locks": lambda p: p.release_unknown_locks(ME, []),
    "end_waits": lambda p: p.end_waits(ME, limit=1, tag_timeout=1.0, item_lock=1.0),
    "release_instance": lambda p: p.release_instance(ME, [Release(instance_id="i")]),
    "resume_instance": lambda p: p.resume_instance(["i"]),
    "reset_instance": lambda p: p.reset_instance(
        Reset(instance_id="i", generation=Generation("b"), execution_id=1, event_count=0, keep=0, history=[])
    ),
    "delete_instance": lambda p: p.delete_instance(["i"], force=True),
    "prune_instances": lambda p: p.prune_instances(FINISHED, 0.0),
    "prune_histories": lambda p: p.prune_histories(0.0),
    "report_session_moves": lambda p: p.report_session_moves([MoveReport(1, 1.0, 1)]),
    "sweep": lambda p: p.sweep(interval=0.0, session_retention=1.0, worker_retention=1.0),
    "save": lambda p: p.states.save(state("s")),
    "delete": lambda p: p.states.delete(["s"]),
    "get_load": lambda p: p.get_load(ME, held=1),
    "replace_payloads": lambda p: blobs_of(p).replace_payloads(
        [PayloadChange(StoredPayload("suspensions.message", '["i"]', "a"), "b")]
    ),
    "suspend_rebalancing": lambda p: p.suspend_rebalancing(suspended=True),
    "set_quotas": lambda p: p.set_quotas(Quotas(instances=1)),
}  # fmt: skip
"""The verbs that a client may not call."""


async def test_a_client_does_nothing_else(url: str) -> None:
    """Each other verb is refused with a typed error, and writes nothing."""
    async with aclosing(await open_provider(as_role(url, CLIENT), as_client=True)) as client:
        assert await client.create_instance([requests.new_instance(Start("flow", instance_id="i"))]) == [True]
        for name, verb in REFUSED.items():
            with pytest.raises(AccessDenied) as caught:
                await verb(client)
            assert caught.value.code == "42501", name
        (info,) = await client.get_instance(["i"])
        assert info is not None
        assert info.status == "pending"


async def test_a_worker_does_everything_but_change_the_schema(url: str) -> None:
    """Nor what says which schema it is, and who may do what."""
    async with aclosing(await open_provider(as_role(url, WORKER))) as worker:
        await worker.create_instance([new_instance("i")])
        await worker.register_worker(ME, 1.0, {}, profile=profile())
        for name in REFUSED.keys() - {"set_quotas", "delete_instance"}:
            await REFUSED[name](worker)
        assert list(await worker.delete_instance(["i"], force=True)) == ["deleted"]
        with pytest.raises(AccessDenied):
            await worker.set_quotas(Quotas(instances=1))
    statements: tuple[LiteralString, ...] = (
        "CREATE TABLE more (n int)", "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "ALTER TABLE instances ADD COLUMN more int", "DROP TABLE history", "TRUNCATE history",
        "CREATE INDEX more ON instances (name)", "ALTER TABLE instances DISABLE TRIGGER ALL",
        "DELETE FROM migrations", "UPDATE timeline SET token = ''",
        "INSERT INTO granted_roles VALUES ('x', 'worker')", "INSERT INTO quotas VALUES (1, 1, 1)",
        "UPDATE audit SET stated_user = ''", "DELETE FROM audit",
    )  # fmt: skip
    with psycopg.connect(as_role(url, WORKER), autocommit=True, options="-c search_path=affinity") as connection:
        for statement in statements:
            with pytest.raises(InsufficientPrivilege):
                connection.execute(statement)


async def test_the_audit_log_has_the_role_and_no_role_changes_it(url: str, admin: psycopg.Connection[Any]) -> None:
    """The role that has logged in is beside the stated user. A worker removes nothing of the last day."""
    async with Client(as_role(url, CLIENT)) as client:
        with client.acting_as("ann"):
            await client.start("child", 1, instance_id="i")
    entry = """[{"user": "bob", "source": "", "action": "a", "kind": "", "target": "", "outcome": "done",
        "succeeded": true, "details": "no JSON"}]"""
    with admin.transaction():
        admin.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(CLIENT)))
        admin.execute("SELECT write_audit(%s)", [entry])
    found = admin.execute("SELECT stated_user, role FROM audit ORDER BY entry_id").fetchall()
    assert found == [("ann", CLIENT), ("bob", f"{admin.info.user} as {CLIENT}")]
    async with Client(as_role(url, READER)) as client:
        assert [each.details async for each in client.audit()] == [{"details": "no JSON"}, {}]
    forged = """[{"user": "root", "source": "console", "role": "app_owner", "action": "delete", "kind": "",
        "target": "", "outcome": "done", "succeeded": true, "details": "{}", "first": 1, "last": 1}]"""
    with psycopg.connect(as_role(url, CLIENT), autocommit=True, options="-c search_path=affinity") as client_role:
        client_role.execute("SELECT write_audit(%s), write_effects(%s, '{1}', '{done}')", [forged, forged])
        with pytest.raises(InsufficientPrivilege):
            client_role.execute("SELECT set_config('role', %s, false)", [WORKER])
    query = "DELETE FROM audit WHERE stated_user = 'root' RETURNING source, role"
    assert admin.execute(query).fetchall() == 2 * [("console", CLIENT)]
    with psycopg.connect(as_role(url, WORKER), autocommit=True, options="-c search_path=affinity") as worker:
        assert worker.execute("SELECT remove_audit(0, 100)").fetchone() == (0,)
    with psycopg.connect(as_role(url, READER), autocommit=True, options="-c search_path=affinity") as reader:
        assert reader.execute("SELECT count(*) FROM audit").fetchone() == (2,)
        with pytest.raises(InsufficientPrivilege):
            reader.execute("SELECT write_audit(%s)", [entry])


OBJECTS: Final[LiteralString] = """
SELECT 'SCHEMA', '', NULL::oid FROM pg_namespace WHERE nspname = 'affinity'
UNION ALL
SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, relname, oid
FROM pg_class WHERE relnamespace = 'affinity'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
UNION ALL
SELECT 'FUNCTION', proname, oid FROM pg_proc WHERE pronamespace = 'affinity'::regnamespace"""
PRIVILEGES: Final[dict[str, tuple[str, ...]]] = {
    "SCHEMA": ("USAGE", "CREATE"),
    "TABLE": ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER", "MAINTAIN"),
    "SEQUENCE": ("USAGE", "SELECT", "UPDATE"),
    "FUNCTION": ("EXECUTE",),
}
KINDS: Final = {"public": None, CLIENT: "client", WORKER: "worker", SCALER: "scaler", READER: "reader"}


async def test_the_table_of_rights_is_whole(url: str, admin: psycopg.Connection[Any]) -> None:
    """Each object of the schema has its row, and each role has, also through PUBLIC, exactly what the row says."""
    assert url
    objects = admin.execute(OBJECTS).fetchall()
    wanted = {(row.kind, name): row for row in all_rights() for name in row.objects.split(" ")}
    assert len(wanted) == sum(len(row.objects.split(" ")) for row in all_rights()), "an object has two rows"
    assert {(kind, name) for kind, name, _ in objects} == wanted.keys()
    has_maintain = admin.info.server_version >= 170_000
    for kind, name, oid in objects:
        for role, role_kind in KINDS.items():
            ask = sql.SQL("SELECT {}(%s, {}, %s)").format(
                sql.Identifier(f"has_{kind.lower()}_privilege"), sql.Literal("affinity" if oid is None else oid)
            )
            known = [each for each in PRIVILEGES[kind] if each != "MAINTAIN" or has_maintain]
            found = {each for each in known if admin.execute(ask, [role, each]).fetchone() == (True,)}
            expected = set() if role_kind is None else set(wanted[kind, name].of(role_kind))
            assert found == expected & set(known), (kind, name, role)
    columns = "SELECT attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE attacl IS NOT NULL"
    assert not admin.execute(f"{columns} AND relnamespace = 'affinity'::regnamespace").fetchall()


def test_a_schema_has_the_rights_to_its_own_functions() -> None:
    """A row of a guest gives no right to a function of the kernel, or of another guest, of the same name."""
    guests = files("affinity")
    schemas = {"": [*(guests / "provider/postgres/schema").iterdir()]}
    for guest in parts():
        store = guests / guest / "store"
        folder = store / "postgres_schema"
        schemas[guest] = [*folder.iterdir()] if folder.is_dir() else [store / "postgres_schema.sql"]
    for guest, scripts in schemas.items():
        rows = parts()[guest].rights if guest else RIGHTS
        named = {name for row in rows if row.kind == "FUNCTION" for name in row.objects.split(" ")}
        assert named == {name for one in scripts for name in re.findall(r"CREATE FUNCTION (\w+)", one.read_text())}, (
            guest
        )


UNPINNED: Final = """
SELECT proname FROM pg_proc
WHERE pronamespace = 'affinity'::regnamespace AND (prosecdef OR proconfig::text LIKE '%search_path%')
  AND NOT 'search_path=affinity, pg_temp' = ANY (coalesce(proconfig, '{}'))"""


async def test_functions_with_the_rights_of_the_owner(url: str, admin: psycopg.Connection[Any]) -> None:
    """A client has thirteen, the documents name them, and no function looks for a name in the caller's temporary tables
    first: triggers run within them with the owner's rights.
    """
    assert url
    allowed = {name for (name,) in admin.execute(DEFINERS, [CLIENT])}
    assert allowed == {
        "admit_work",
        "change_limits",
        "client_append_input",
        "client_append_journals",
        "client_create_instances",
        "client_create_journal",
        "client_restart_instances",
        "client_send_messages",
        "client_write_schedules",
        "describe_journal",
        "keep_exported_blobs",
        "read_timeline",
        "write_audit",
    }
    (row,) = [line for line in DATABASES.read_text().splitlines() if line.startswith("| client |")]
    assert allowed <= set(re.findall(r"`(\w+)`", row))
    assert admin.execute(DEFINERS, [SCALER]).fetchall() == []
    assert admin.execute(DEFINERS, [READER]).fetchall() == [("read_timeline",)]
    assert admin.execute(UNPINNED).fetchall() == []


ADVANCED: Final[LiteralString] = "SELECT current_token FROM establish_timeline(%s, 9223372036854775807)"


async def test_only_a_worker_begins_a_timeline_for_a_number(url: str, admin: psycopg.Connection[Any]) -> None:
    """A client's role begins one where the server itself is another one, and an autoscaler never does."""

    def token() -> Any:
        return admin.execute("SELECT token FROM timeline").fetchone()

    async with Client(url):  # this database is a copy: another one
        before = token()
    for role in (CLIENT, SCALER):
        with psycopg.connect(as_role(url, role), autocommit=True, options="-c search_path=affinity") as connection:
            for statement in ("SELECT begin_timeline()", ADVANCED):
                with pytest.raises(InsufficientPrivilege):
                    connection.execute(statement, before if statement is ADVANCED else None)
            if role == SCALER:
                with pytest.raises(InsufficientPrivilege):
                    connection.execute("SELECT read_timeline()")
    async with Client(as_role(url, CLIENT)):
        assert token() == before
        admin.execute("UPDATE timeline SET place = 'elsewhere'")
    async with Client(as_role(url, CLIENT)):
        assert (begun := token()) != before
    with psycopg.connect(as_role(url, WORKER), autocommit=True, options="-c search_path=affinity") as connection:
        assert connection.execute(ADVANCED, begun).fetchone() != begun


def _plain(name: str) -> JournalCreation:
    """A conversation that a client creates without an input."""
    return JournalCreation(
        session_id=name, kind="support", start=start_of("support"), lineage=None, operator="", message=WAKE_MESSAGE
    )


async def test_a_client_writes_no_state(url: str, admin: psycopg.Connection[Any]) -> None:
    """Neither by calling the function itself, nor with a conversation that it makes; a worker does."""
    creation = replace(creation_of("j", lineage="import"), state=state("j", labels={"resource:box": "of another"}))
    with psycopg.connect(as_role(url, CLIENT), autocommit=True, options="-c search_path=affinity") as connection:
        for function in ("client_create_journal", "create_journal"):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(f"SELECT {function}(%s)", [json.dumps(creation_document(creation))])
    async with aclosing(await open_provider(as_role(url, CLIENT), as_client=True)) as client:
        with pytest.raises(AccessDenied, match="--grant-worker"):
            await journals_of(client).create_journals([creation])
        with pytest.raises(AccessDenied, match="--grant-worker"):  # with words of the agent
            await journals_of(client).create_journals([creation_of("plain", lineage="import")])
        assert (await journals_of(client).create_journals([_plain("plain")]))[0].outcome == "created"
    assert admin.execute("SELECT session_id FROM session_states").fetchall() == []
    async with aclosing(await open_provider(as_role(url, WORKER))) as worker:
        assert (await journals_of(worker).create_journals([creation]))[0].outcome == "created"
    assert admin.execute("SELECT session_id FROM session_states").fetchall() == [("j",)]


async def test_a_migration_closes_what_a_restore_has_opened(url: str, admin: psycopg.Connection[Any]) -> None:
    """A dump that is restored without rights gives PUBLIC every function, and the roles nothing."""
    for statement in (
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA affinity TO PUBLIC",
        f"REVOKE ALL ON ALL TABLES IN SCHEMA affinity FROM {CLIENT}, {WORKER}, {SCALER}",
        f"REVOKE ALL ON SCHEMA affinity FROM {CLIENT}, {WORKER}, {SCALER}",
    ):
        admin.execute(statement)
    await migrate(url)
    await test_the_table_of_rights_is_whole(url, admin)


async def test_a_client_makes_no_journal_beyond_the_quotas(url: str) -> None:
    """Nor when it says that a wake does, for which there is no quota."""
    async with aclosing(await open_provider(url)) as provider:
        await provider.set_quotas(Quotas(instances=1))
        assert await provider.create_instance([new_instance("i")]) == [True]
    document = {**creation_document(_plain("j")), "of_wake": True}
    with psycopg.connect(as_role(url, CLIENT), autocommit=True, options="-c search_path=affinity") as client:
        made = client.execute("SELECT outcome FROM client_create_journal(%s)", [json.dumps(document)])
        assert made.fetchone() == ("over_quota",)


async def test_what_a_client_makes_for_itself_deceives_no_function(url: str, admin: psycopg.Connection[Any]) -> None:
    """Tables of its session come first in its own search path, and not in the functions' search path."""
    with psycopg.connect(as_role(url, CLIENT), autocommit=True, options="-c search_path=affinity") as client:
        client.execute("CREATE TEMP TABLE instances (LIKE affinity.instances INCLUDING DEFAULTS)")
        client.execute("CREATE TEMP TABLE quotas (instances bigint, unread_events bigint, instance_bytes bigint)")
        client.execute(
            "SELECT affinity.client_create_instances('{i}', '{b}', '{flow}', '{NULL}', ARRAY[%s], '{0}', '{NULL}')",
            [requests.new_instance(Start("flow")).start],
        )
        assert client.execute("SELECT count(*) FROM pg_temp.instances").fetchone() == (0,)
    assert admin.execute("SELECT instance_id FROM instances").fetchall() == [("i",)]


MORE: Final[LiteralString] = """
CREATE TABLE more (n int);
CREATE SEQUENCE numbers;
CREATE FUNCTION count_more() RETURNS int LANGUAGE sql AS 'SELECT 1'"""
MORE_RIGHTS: Final = (
    Rights("TABLE", "more", client="SELECT", worker="SELECT, INSERT", scaler="SELECT"),
    Rights("SEQUENCE", "numbers", worker="USAGE"),
    Rights("FUNCTION", "count_more", worker="EXECUTE"),
)
ASKED: Final[LiteralString] = """
SELECT has_table_privilege(%(role)s, 'more', 'SELECT'), has_table_privilege(%(role)s, 'more', 'INSERT'),
    has_sequence_privilege(%(role)s, 'numbers', 'USAGE'), has_function_privilege(%(role)s, 'count_more()', 'EXECUTE')"""


async def test_what_a_later_migration_adds_is_theirs_too(
    url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the table of rights says; and nothing is left of it when the rights are taken away."""
    now = len(migration.MIGRATIONS)
    later = Migration(now + 1, "later", MORE)
    monkeypatch.setattr(migration, "MIGRATIONS", [*migration.MIGRATIONS, later])
    monkeypatch.setattr(rights, "RIGHTS", [*RIGHTS, *MORE_RIGHTS])
    await migrate(url)

    def asked(role: str) -> Any:
        return admin.execute(ASKED, {"role": role}).fetchone()

    assert asked(CLIENT) == (True, False, False, False)
    assert asked(WORKER) == (True, True, True, True)
    assert asked(SCALER) == (True, False, False, False)
    assert asked("public") == (False, False, False, False)
    await change_rights(url, clients=[WORKER], revoke=[CLIENT, SCALER, READER])
    assert asked(CLIENT) == asked(SCALER) == (False, False, False, False)
    assert asked(WORKER) == (True, False, False, False)
    assert admin.execute("SELECT role, kind FROM granted_roles").fetchall() == [(WORKER, "client")]


async def test_an_autoscaler_reads_one_view(url: str, admin: psycopg.Connection[Any]) -> None:
    """With the name of the schema, and without a setting of the connection; and which migrations were applied."""
    async with aclosing(await open_provider(url)) as owner:
        await owner.register_worker(ME, 60.0, {}, profile=profile(capacity=7))
    with psycopg.connect(as_role(url, SCALER), autocommit=True) as connection:
        asked = connection.execute("SELECT held, waiting, capacity, desired FROM affinity.desired_workers")
        assert asked.fetchall() == [(0, 0, 7.0, 0)]
        version = connection.execute("SELECT max(version) FROM affinity.migrations").fetchone()
        assert version == (len(migration.MIGRATIONS),)
        for table in ("workers", "sessions", "worker_queue", "held_sessions", "granted_roles"):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(sql.SQL("SELECT FROM affinity.{}").format(sql.Identifier(table)))
    await change_rights(url, revoke=[SCALER])
    asked = admin.execute("SELECT has_table_privilege(%s, 'desired_workers', 'SELECT')", [SCALER])
    assert asked.fetchone() == (False,)


WRITES: Final[dict[str, Callable[[Client], Awaitable[object]]]] = {
    "start": lambda c: c.start("flow"),
    "start again": lambda c: c.start("child", 1, instance_id="i", if_ended="restart"),
    "raise": lambda c: c.raise_event("i", "number", 1),
    "raise once": lambda c: c.raise_event("i", "number", 1, idempotency_key="k"),
    "cancel": lambda c: c.cancel("i"),
    "resume": lambda c: c.resume("i"),
    "delete": lambda c: c.delete("i", force=True),
    "release": lambda c: c.release_session("s"),
    "move": lambda c: c.move_session("s", "w"),
    "drain": lambda c: c.drain_worker("me"),
    "converse": lambda c: c.conversation(Conversations(Chat, kind="chat"), "c").send(UserMessage("hello")),
}
"""What a client or an operator does, and a reader may not."""


@pytest.mark.parametrize("write", WRITES)
async def test_a_reader_writes_nothing(url: str, admin: psycopg.Connection[Any], write: str) -> None:
    """And reads all that a console shows."""
    async with aclosing(await open_provider(url)) as owner, Client(url) as client:
        await owner.register_worker(ME, 60.0, {}, profile=profile())
        await client.start("child", 1, instance_id="i")

    def counts() -> Any:
        tables = ("instances", "orchestrator_queue", "journals", "sessions")
        return [admin.execute(f"SELECT count(*) FROM {table}").fetchone() for table in tables]

    before = counts()
    async with Client(as_role(url, READER)) as reader:
        with pytest.raises(AccessDenied):
            await WRITES[write](reader)
        transport = httpx.ASGITransport(app=create(reader))
        async with httpx.AsyncClient(transport=transport, base_url="http://console.test") as http:
            for path in (
                "/",
                "/workers",
                "/sessions",
                "/instances",
                "/instance?id=i",
                "/conversations",
                "/approvals",
                "/audit",
            ):
                assert (await http.get(path)).status_code == 200, path
    assert counts() == before


async def test_roles_that_make_no_sense_are_refused(url: str, sqlite_url: str, admin: psycopg.Connection[Any]) -> None:
    """And nothing is changed."""
    for wanted, said in (
        ({"clients": ["nobody_of_this_name"]}, "CREATE ROLE"),
        ({"clients": [CLIENT], "workers": [CLIENT]}, "twice"),
        ({"scalers": [SCALER], "workers": [SCALER]}, "twice"),
        ({"revoke": [admin.info.user]}, "owns"),
    ):
        with pytest.raises(InvalidOptions, match=said):
            await change_rights(url, **wanted)
    with pytest.raises(InvalidOptions, match="SQLite has no roles"):
        await change_rights(sqlite_url, clients=["x"])
    assert admin.execute("SELECT count(*) FROM granted_roles").fetchone() == (4,)


def test_the_command_gives_rights(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """Together with the migration."""
    flags = ["--grant-client", CLIENT, "--grant-worker", WORKER, "--url", postgres_migrated]
    assert CliRunner().invoke(main, ["migrate", *flags]).exit_code == 0
    assert dict(admin.execute("SELECT role, kind FROM granted_roles").fetchall()) == {
        CLIENT: "client", WORKER: "worker"
    }  # fmt: skip

    async def start() -> None:
        async with Client(as_role(postgres_migrated, CLIENT)) as client:
            await client.start("flow")

    anyio.run(partial(start))
