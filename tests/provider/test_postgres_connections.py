"""PostgreSQL: one connection and the calls on it, on both event loops: sent messages, their order, the end."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, LiteralString

import anyio
import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.pq import ConnStatus
from psycopg.types.numeric import Int8

from affinity.errors import ConnectionLost, DatabaseFailure, DataRefused, SchemaMismatch
from affinity.provider.contract import Hint
from affinity.provider.postgres.driver import connections
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.connections import Connection, Connections, Role
from affinity.provider.postgres.driver.target import COLD, HOT, Target
from affinity.provider.postgres.driver.wire import Outcome, Params, Statement, WireProtocol
from tests.provider.postgres_stage import PATIENCE, SOMEBODY_WAITS, administrator, opened, registered, terminate, until
from tests.servers.proxy import proxy
from tests.servers.tls import tls_front
from tests.support.smoke import smoke

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.driver,
    pytest.mark.nightly_cases(r"\[(?!asyncio-plain-).*\bold\b"),  # no loop and no TLS depends on the version
]

LOOPS: Final = [False, True] if find_spec("uvloop") else [False]

PID: Final = "SELECT pg_backend_pid()"
WAIT: Final = "UPDATE gate SET passed = passed + 1 RETURNING passed"
PASSED_TWICE: Final = "SELECT passed = 2 FROM affinity.gate"
NOBODY_WAITS: Final = "SELECT count(*) = 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.fixture(params=LOOPS, ids=lambda uvloop: "uvloop" if uvloop else "asyncio", scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Workers run on uvloop where it is installed, and applications on whatever they like."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def admin(postgres_database: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection, which can keep others from the table."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        yield connection


@pytest.fixture(params=["plain", "tls"])
def where(request: pytest.FixtureRequest, postgres_database: str, tmp_path: Path) -> Iterator[str]:
    """The same database, as it is and behind TLS, where what has come is not what the socket holds."""
    if request.param == "plain":
        yield postgres_database
    else:
        with tls_front(postgres_database, tmp_path) as front:
            yield front.url(sslmode="verify-full", sslrootcert=front.authority)


@pytest.fixture
async def connection(where: str, admin: psycopg.Connection[Any]) -> AsyncIterator[Connection]:
    """A connection of the hot loop, not yet made."""
    admin.execute("CREATE SCHEMA affinity")
    admin.execute("CREATE TABLE affinity.gate AS SELECT 0 AS passed")
    async with aclosing(Connection(Target.parse(where), "affinity connection", HOT)) as connection:
        yield connection


@pytest.fixture
def watcher(postgres_database: str) -> Iterator[psycopg.Connection[Any]]:
    """Another, which is free while the first is in a transaction."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        yield connection


def shut(admin: psycopg.Connection[Any]) -> None:
    """Within a transaction; at its end the gate is open again."""
    admin.execute("LOCK TABLE affinity.gate")


# --- sent messages ----------------------------------------------------------------------------------------------------


async def test_calls_go_in_order(connection: Connection) -> None:
    """Calls that wait for the connection, and calls that wait for each other."""
    await connection.simple_query("CREATE SEQUENCE turn")
    turns = await asyncio.gather(*(connection.run("SELECT nextval('turn')") for _ in range(50)))
    assert turns == [[(n,)] for n in range(1, 51)]


@pytest.mark.slow_cases("asyncio-tls|uvloop-plain")
@pytest.mark.once
async def test_thirty_megabytes_go_through_and_come_back(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a socket takes in one piece: the rest is sent when it can be, and the next call waits for its turn."""
    written = 0
    writable = WireProtocol._writable

    def count(conversation: WireProtocol) -> None:
        nonlocal written
        written += 1
        writable(conversation)

    monkeypatch.setattr(WireProtocol, "_writable", count)
    await connection.run("SELECT 1")
    assert connection._protocol is not None
    with socket.socket(fileno=os.dup(connection._protocol._pgconn.socket)) as plug:
        # Else a busy machine may take all as fast as it comes.
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
    large = bytes(range(256)) * (30 * 4096)
    statement = "SELECT %(value)s::bytea, octet_length(%(value)s::bytea)"
    for _ in range(2):  # prepared, and prepared already
        written = 0
        answers = await asyncio.gather(
            connection.run(statement, {"value": large}),
            connection.run(WAIT),
            connection.simple_query("SELECT %(value)s", {"value": "x"}),
        )
        assert answers[0] == [(large, len(large))]
        assert answers[2] == [[("x",)]]
        assert written


async def test_a_value_may_be_missing_at_one_time_and_not_at_another(connection: Connection) -> None:
    """A statement is prepared for the types that it gets."""
    for value in (None, "x", None, "y", 3, 2**40, 1.5, True, "z"):
        text = None if value is None else f"a{str(value).lower()}%"
        assert await connection.run("SELECT %(value)s, 'a' || %(value)s || '%%'", {"value": value}) == [(value, text)]
    found = await connection.run(
        "SELECT cardinality(%(value)s), %(none)s::text", {"value": Texts(["a", None]), "none": None}
    )
    assert found == [(2, None)]


async def test_statements_together_are_one_transaction_with_a_snapshot_each(connection: Connection) -> None:
    """Each is prepared once, also if the first time they failed; an error undoes all, and the connection is kept."""
    await connection.simple_query("CREATE TABLE made (n bigint)")
    ((pid,),) = await connection.run("SELECT pg_backend_pid()")
    both: tuple[LiteralString, ...] = ("INSERT INTO made VALUES (%(n)s)", "SELECT count(*), 6 / %(n)s FROM made")
    with pytest.raises(DataRefused, match="division by zero"):
        await connection.pipeline(both, {"n": Int8(0)})
    assert await connection.pipeline(both, {"n": Int8(2)}) == [[], [(1, 3)]]
    assert await connection.pipeline(both, {"n": Int8(3)}) == [[], [(2, 2)]]
    assert await connection.run("SELECT n FROM made ORDER BY n") == [(2,), (3,)]
    prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE %(text)s"
    assert await connection.run(prepared, {"text": "INSERT INTO made%"}) == [(1,)]
    assert await connection.run(prepared, {"text": "%6 / $%"}) == [(1,)]
    assert await connection.run("SELECT pg_backend_pid()") == [(pid,)]


async def test_a_script_has_the_rows_of_each_statement(connection: Connection) -> None:
    """Its values are quoted; one that fails undoes all of it."""
    params = {"text": "it's 100% \\ %(n)s", "n": -1, "none": None, "names": ["a", "b'"]}
    found = await connection.simple_query(
        "CREATE TABLE made (n int); INSERT INTO made VALUES (1 - %(n)s); -- as it is: %%\n"
        "SELECT n, n = 2 FROM made; SELECT FROM made; SELECT %(text)s, %(none)s, %(names)s::text[], 5 %% 3",
        params,
    )
    assert found == [[], [], [(2, True)], [], [("it's 100% \\ %(n)s", None, ["a", "b'"], 2)]]
    assert await connection.simple_query("SELECT 5 % 3") == [[(2,)]]
    assert await connection.simple_query("") == [[]]
    with pytest.raises(DataRefused, match="division"):
        await connection.simple_query("INSERT INTO made VALUES (7); SELECT 1 / 0; SELECT 1")
    assert await connection.run("SELECT n FROM made") == [(2,)]


# --- statements that must be prepared anew ----------------------------------------------------------------------------


async def test_a_migration_is_not_noticed(connection: Connection, admin: psycopg.Connection[Any]) -> None:
    """What was prepared for the tables as they were is prepared anew, on the same connection; nothing is done twice."""
    add: LiteralString = "UPDATE gate SET passed = passed + 1 RETURNING *"
    both: tuple[LiteralString, ...] = (add, "SELECT * FROM gate")
    pid = await connection.run(PID)
    await connection.pipeline(both, {})
    admin.execute("ALTER TABLE affinity.gate ADD COLUMN more text")
    first, second = await asyncio.gather(connection.run(add), connection.run(add))
    assert first + second == [(2, None), (3, None)]
    admin.execute("ALTER TABLE affinity.gate DROP COLUMN more")
    assert await connection.pipeline(both, {}) == [[(4,)], [(4,)]]
    admin.execute("ALTER TABLE affinity.gate ALTER COLUMN passed TYPE text")
    assert await connection.run("SELECT * FROM gate") == [("4",)]
    assert await connection.run(PID) == pid


@pytest.mark.parametrize("spoil", ["DEALLOCATE ALL", "PREPARE affinity_1 AS SELECT 2; PREPARE affinity_2 AS SELECT 3"])
async def test_statements_that_other_code_deallocated_or_prepared(connection: Connection, spoil: LiteralString) -> None:
    """As a pooler may."""
    pid = await connection.run(PID)
    await connection.simple_query(spoil)
    assert await connection.run(PID) == pid
    assert await connection.pipeline((PID, "SELECT 1"), {}) == [pid, [(1,)]]


async def test_a_statement_that_never_fits_is_an_error(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is repeated once; the next call has a connection of its own."""
    pid = await connection.run(PID)
    await connection.simple_query("DEALLOCATE ALL")
    monkeypatch.setattr(WireProtocol, "forget_statements", lambda _, then: then())
    with pytest.raises(ConnectionLost, match="26000"):
        await connection.run(PID)
    assert await connection.run(PID) != pid


# --- a hint behind a statement ----------------------------------------------------------------------------------------

NOTE: Final = "INSERT INTO notes SELECT %(note)s, pg_current_xact_id() "
"""A statement whose execution can be seen, with its transaction."""
NOTES: Final = "SELECT note FROM affinity.notes ORDER BY xact"
HINT: Final[Statement] = (NOTE, {"note": "hint"})
WAITING_HINT: Final[Statement] = (WAIT, {})
PASSED: Final = "SELECT passed = 1 FROM affinity.gate"


@pytest.fixture
async def noting(connection: Connection) -> Connection:
    """The connection, with a table for `NOTE`, whose rows are checked at the end of their transaction too."""
    await connection.simple_query("""
        CREATE TABLE notes (note text, xact xid8);
        CREATE FUNCTION refuse_late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE division_by_zero; END';
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW WHEN (NEW.note = 'late') EXECUTE FUNCTION refuse_late()""")
    return connection


async def notes(connection: Connection) -> list[str]:
    """What was noted, in the order of the transactions; after the hint of the call before."""
    return [note for (note,) in await connection.run(NOTES)]


async def prepare(connection: Connection, statement: LiteralString, params: Params, hint: Statement) -> None:
    """Execute both once, to their end: to prepare them later would wait for a table that is locked."""
    await connection.run(statement, params, behind=hint)
    await connection.run("SELECT 1")


async def test_a_hint_is_a_transaction_of_its_own_behind_the_statement(noting: Connection) -> None:
    for _ in range(2):  # not prepared yet, and prepared
        await noting.run(NOTE, {"note": "first"}, behind=HINT)
    assert await notes(noting) == ["first", "hint"] * 2
    assert await noting.run("SELECT count(DISTINCT xact) FROM notes") == [(4,)]


async def test_only_the_next_call_waits_for_a_hint(
    noting: Connection, admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any]
) -> None:
    """The transaction before it has ended: its rows are there for others."""
    pid = await noting.run(PID)
    await prepare(noting, NOTE, {"note": "before"}, WAITING_HINT)
    with admin.transaction():
        shut(admin)
        await noting.run(NOTE, {"note": "first"}, behind=WAITING_HINT)
        await until(watcher, SOMEBODY_WAITS)
        assert watcher.execute(NOTES).fetchall() == [("before",), ("first",)]
        assert not noting.is_free
        following = asyncio.create_task(noting.run(PID))
        await asyncio.sleep(0.01)
        assert not following.done()
    assert await following == pid
    assert watcher.execute(PASSED_TWICE).fetchone() == (True,)
    assert noting.is_free


@pytest.mark.parametrize("note", ["late", "\0"], ids=["at its end", "before it is sent"])
async def test_a_hint_that_fails_at_its_end_or_cannot_be_sent(noting: Connection, note: str) -> None:
    """At the end of its transaction it is no news; what cannot be sent is, and then nothing is."""
    pid = await noting.run(PID)
    hint: Statement = (NOTE, {"note": note})
    for _ in range(2):
        if note == "late":
            assert await noting.run("SELECT 1", behind=hint) == [(1,)]
        else:
            with pytest.raises(DataRefused):
                await noting.run(NOTE, {"note": "first"}, behind=hint)
    assert await notes(noting) == []
    assert await noting.run(PID) == pid


async def test_a_hint_that_fails_is_no_news(noting: Connection) -> None:
    pid = await noting.run(PID)
    for _ in range(2):
        await noting.run(NOTE, {"note": "first"}, behind=("SELECT 1 / %(n)s::int", {"n": 0}))
    assert await notes(noting) == ["first", "first"]
    assert await noting.run(PID) == pid


async def test_a_hint_goes_out_behind_a_statement_that_fails(noting: Connection) -> None:
    """While it is executed, or at the end of its transaction; the statement raises."""
    pid = await noting.run(PID)
    for _ in range(2):
        for statement, params in (("SELECT 1 / %(n)s::int", {"n": 0}), (NOTE, {"note": "late"})):
            with pytest.raises(DataRefused, match="division"):
                await noting.run(statement, params, behind=HINT)
    assert await notes(noting) == ["hint"] * 4
    assert await noting.run(PID) == pid


@pytest.mark.parametrize("fails", [False, True])
async def test_the_reply_counts_when_the_connection_is_cut_before_its_hint_has_ended(
    noting: Connection, admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any], fails: bool
) -> None:
    """Rows or an error; what waits behind has another connection."""
    statement: LiteralString = "SELECT 1 / %(n)s::int"
    await prepare(noting, statement, {"n": 1}, WAITING_HINT)
    with admin.transaction():
        shut(admin)
        call = asyncio.create_task(noting.run(statement, {"n": 0 if fails else 1}, behind=WAITING_HINT))
        following = asyncio.create_task(noting.run("SELECT 2"))
        await until(watcher, SOMEBODY_WAITS)
        terminate(watcher)
        if fails:
            with pytest.raises(DataRefused, match="division"):
                await call
        else:
            assert await call == [(1,)]
        assert await following == [(2,)]
    assert watcher.execute(PASSED).fetchone() == (True,)


async def test_a_reset_that_comes_with_the_reply_before_its_hint_has_ended(where: str) -> None:
    """The call has its reply, and the next one a connection of its own."""
    hint: Statement = ("SELECT pg_sleep(%(seconds)s)", {"seconds": 0.0})
    with proxy(where) as network:
        async with aclosing(Connection(Target.parse(network.url), "affinity connection", HOT)) as connection:
            pid = await connection.run(PID)
            await prepare(connection, PID, {}, hint)
            line = network.lines[-1]
            line.resets = True
            call = asyncio.create_task(connection.run(PID, behind=(hint[0], {"seconds": 0.2})))
            await asyncio.sleep(0)  # it is sent
            assert line.was_reset.wait(PATIENCE)  # while the loop stands still
            assert _has_ended(connection)
            assert await call == pid
            with anyio.fail_after(PATIENCE / 2):
                assert await connection.run(PID) not in ([], pid)


async def test_a_connection_that_is_cut_before_the_reply_is_lost(
    noting: Connection, admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any]
) -> None:
    """With its hint, although both were sent."""
    await prepare(noting, WAIT, {}, HINT)
    with admin.transaction():
        shut(admin)
        call = asyncio.create_task(noting.run(WAIT, behind=HINT))
        await until(watcher, SOMEBODY_WAITS)
        terminate(watcher)
        with pytest.raises(ConnectionLost, match="terminating connection"):
            await call
    assert await notes(noting) == ["hint"]


@pytest.mark.parametrize("spoil", ["DEALLOCATE ALL", "first", "hint"])
async def test_a_statement_that_is_gone_is_prepared_anew_and_so_is_its_hint(
    noting: Connection, spoil: LiteralString
) -> None:
    """Or the hint alone, where the statement was executed; on the same connection."""
    pid = await noting.run(PID)
    await noting.run(NOTE, {"note": "first"}, behind=WAITING_HINT)
    names = {"first": "affinity_1", "hint": "affinity_2"}
    await noting.simple_query(f"DEALLOCATE {names[spoil]}" if spoil in names else spoil)
    await noting.run(NOTE, {"note": "second"}, behind=WAITING_HINT)
    assert await notes(noting) == ["first", "second"]
    # A hint that was behind a statement that executed nothing is sent again.
    assert await noting.run("SELECT passed FROM gate") == [(3 if spoil == "first" else 2,)]
    assert await noting.run(PID) == pid


async def test_a_call_whose_caller_is_cancelled_comes_to_its_end_with_its_hint(
    noting: Connection, admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any]
) -> None:
    pid = await noting.run(PID)
    await prepare(noting, WAIT, {}, HINT)
    with admin.transaction():
        shut(admin)
        call = asyncio.create_task(noting.run(WAIT, behind=HINT))
        await until(watcher, SOMEBODY_WAITS)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await notes(noting) == ["hint"] * 2
    assert watcher.execute(PASSED_TWICE).fetchone() == (True,)
    assert await noting.run(PID) == pid


async def test_a_hint_that_is_not_answered_is_given_up(
    noting: Connection, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its connection; the next call has another one."""
    await noting.aclose()
    monkeypatch.setattr(connections, "CALL_TIMEOUT", 1.0)
    async with aclosing(Connection(noting._target, "affinity connection", HOT)) as connection:
        pid = await connection.run(PID)
        await prepare(connection, PID, {}, WAITING_HINT)
        with admin.transaction():
            shut(admin)
            assert await connection.run(PID, behind=WAITING_HINT) == pid
            assert await connection.run(PID) != pid


async def test_closing_does_not_wait_for_a_hint(
    noting: Connection, admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any]
) -> None:
    """Which the server has, and executes."""
    await prepare(noting, PID, {}, WAITING_HINT)
    with admin.transaction():
        shut(admin)
        await noting.run(PID, behind=WAITING_HINT)
        await until(watcher, SOMEBODY_WAITS)
        with anyio.fail_after(PATIENCE / 2):
            await noting.aclose()
    await until(watcher, PASSED_TWICE)


async def test_a_hint_is_executed_under_the_settings_of_its_call(noting: Connection) -> None:
    hint: Statement = ("INSERT INTO notes SELECT current_setting('enable_seqscan')", {})
    for settings in (COLD, HOT, COLD):
        await Role((noting,), settings).run(NOTE, {"note": "first"}, behind=hint)
    found = await noting.run("SELECT note FROM notes WHERE note <> 'first' ORDER BY ctid")
    assert found == [("on",), ("off",), ("on",)]


async def test_a_hint_to_the_connection_that_sends_it_is_received(noting: Connection) -> None:
    received: list[str] = []

    class Listener:
        def receive(self, channel: str, payload: str) -> None:
            received.append(payload)

        def end(self, error: Exception) -> None:
            raise AssertionError(error)

    await noting.subscribe(["channel"], listener := Listener())
    notify: LiteralString = "SELECT pg_notify('channel', %(payload)s)"
    for payload in ("a", "b"):
        await noting.run(notify, {"payload": payload}, behind=(notify, {"payload": f"behind {payload}"}))
        assert payload in received  # it comes with the reply
    await noting.run("SELECT 1")
    assert received == ["a", "behind a", "b", "behind b"]
    await noting.unsubscribe(listener)


class Deaf:
    """A server that refuses LISTEN, until ``state`` is empty."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: str = "feature_not_supported") -> None:
        self.state = state
        self.asked: list[WireProtocol] = []
        listen = WireProtocol.listen

        def ask(protocol: WireProtocol, channels: Sequence[str], *told: Any) -> None:
            self.asked.append(protocol)
            refused = f"none\";DO 'BEGIN RAISE {self.state}; END';--"  # one transaction
            listen(protocol, [refused] if self.state else channels, *told)

        monkeypatch.setattr(WireProtocol, "listen", ask)

    @property
    def is_asked_once(self) -> bool:
        """By each connection."""
        return len(self.asked) == len(set(map(id, self.asked)))


class Ear:
    """A subscriber that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ends: list[Exception] = []

    def receive(self, channel: str, payload: str) -> None:
        self.heard.append(payload)

    def end(self, error: Exception) -> None:
        self.ends.append(error)


@pytest.mark.parametrize("state", ["feature_not_supported", "insufficient_privilege", "syntax_error"])
async def test_a_server_without_listen_is_asked_once_by_each_connection(
    connection: Connection,
    state: str,
    watcher: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The refusal ends no connection, and calls go on. Who would have listened hears of the end of the connection."""
    deaf = Deaf(monkeypatch, state)
    for number in (1, 2):
        first, second = Ear(), Ear()
        await connection.subscribe(["channel"], first)
        pid = await connection.run(PID)
        await connection.subscribe(["channel"], second)
        await connection.unsubscribe(gone := Ear())
        assert await connection.run(PID) == pid
        assert len(deaf.asked) == number
        assert not first.ends
        watcher.execute("SELECT pg_terminate_backend(%s)", pid[0])
        with pytest.raises(ConnectionLost):
            await connection.run(PID)
        assert [len(each.ends) for each in (first, second, gone)] == [1, 1, 0]
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "polling alone" in warnings[0]


async def test_a_server_with_listen_behind_one_without_is_listened_to(
    connection: Connection, watcher: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover."""
    deaf = Deaf(monkeypatch)
    await connection.subscribe(["channel"], Ear())
    watcher.execute("SELECT pg_terminate_backend(%s)", (await connection.run(PID))[0])
    with pytest.raises(ConnectionLost):
        await connection.run(PID)
    deaf.state = ""
    await connection.subscribe(["channel"], ear := Ear())
    watcher.execute("NOTIFY channel, 'news'")
    await connection.run("SELECT 1")
    assert ear.heard == ["news"]
    await connection.unsubscribe(ear)
    watcher.execute("NOTIFY channel, 'more'")
    await connection.run("SELECT 1")
    assert ear.heard == ["news"]


async def test_without_listen_all_works_by_polling(postgres_migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work, events, replies to a client."""
    deaf = Deaf(monkeypatch)
    await smoke(postgres_migrated)
    assert deaf.is_asked_once
    assert len(deaf.asked) < 5  # a worker, a client


async def test_a_worker_hears_hints_behind_a_failover_to_a_server_with_listen(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told of the failover, and listens again."""
    deaf = Deaf(monkeypatch)
    async with opened(postgres_migrated) as provider:
        one = await registered(provider)
        with administrator(postgres_migrated) as admin, anyio.fail_after(PATIENCE):
            async with provider.hints(one.identity) as hints:
                assert await hints.wait(0.0) is None
                terminate(admin)
                with pytest.raises(ConnectionLost):
                    await hints.wait(PATIENCE)
            deaf.state = ""
            async with provider.hints(one.identity) as hints:
                await provider.notify_workers({one.identity.worker_id: Hint(work=True)})
                assert (await hints.wait(PATIENCE) or Hint()).work
    assert deaf.is_asked_once


# --- what goes wrong with one call ------------------------------------------------------------------------------------


async def test_an_error_leaves_the_connection_usable(connection: Connection) -> None:
    """Reported by the server while it prepares or executes, or found before anything was sent."""
    pid = await connection.run(PID)
    for _ in range(2):
        with pytest.raises(DataRefused, match="division"):
            await connection.run("SELECT 1 / %(n)s::int", {"n": 0})
        with pytest.raises(SchemaMismatch):
            await connection.run("SELECT * FROM later")
        with pytest.raises(DataRefused, match="cannot adapt"):
            await connection.run("SELECT %(value)s", {"value": object()})
        with pytest.raises(UnicodeEncodeError):
            await connection.run("SELECT %(value)s", {"value": Texts(["\ud800"])})
        with pytest.raises(KeyError):
            await connection.run("SELECT %(value)s", {})
    await connection.simple_query("CREATE TABLE later (n int)")
    assert await connection.run("SELECT * FROM later") == []
    assert await connection.run(PID) == pid


async def test_any_number_of_calls_may_fail_one_after_the_other(connection: Connection) -> None:
    """Though none of them is sent, and the one before the last of them is."""
    bad = [connection.run("SELECT %(value)s", {"value": object()}) for _ in range(3_000)]
    *failures, good = await asyncio.gather(*bad, connection.run("SELECT 1"), return_exceptions=True)
    assert {type(failure) for failure in failures} == {DataRefused}
    assert good == [(1,)]


async def test_a_copy_is_refused(connection: Connection) -> None:
    """It would wait for us, or we for it; the next call has a connection of its own."""
    for statement in ("COPY (SELECT 1) TO STDOUT", "COPY pg_type FROM STDIN"):
        with pytest.raises(DatabaseFailure, match="COPY"):
            await connection.simple_query(statement)
        assert await connection.run("SELECT 1") == [(1,)]


# --- what goes wrong with the connection ------------------------------------------------------------------------------


async def test_a_connection_that_is_ended_between_calls_is_noticed_by_the_next(
    connection: Connection, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the server's words, whatever it has said before; until then the closed socket does not keep us busy."""
    reads = 0
    noticed = anyio.Event()
    readable = WireProtocol._readable

    def count(conversation: WireProtocol) -> None:
        nonlocal reads
        readable(conversation)
        reads += 1
        noticed.set()

    pid = await connection.run(PID)
    with monkeypatch.context() as patch:
        patch.setattr(WireProtocol, "_readable", count)
        terminate(admin)
        with pytest.raises(ConnectionLost, match="terminating connection"):
            await connection.run(PID)
        await connection.run(PID)
        reads, noticed = 0, anyio.Event()
        terminate(admin)
        with anyio.fail_after(PATIENCE):
            await noticed.wait()
        for _ in range(10):
            await anyio.sleep(0.001)
        assert reads == 1
        with pytest.raises(ConnectionLost, match="terminating connection"):
            await connection.run(PID)
    assert await connection.run(PID) not in ([], pid)


async def test_a_connection_that_is_ended_in_the_middle_of_a_call(
    connection: Connection, admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any]
) -> None:
    """The call says so; the one after it has another connection."""
    with admin.transaction():
        shut(admin)
        stuck, waiting = (asyncio.create_task(connection.run(statement)) for statement in (WAIT, "SELECT 1"))
        await until(watcher, SOMEBODY_WAITS)
        terminate(watcher)
        with pytest.raises(ConnectionLost, match="terminating connection"):
            await stuck
        assert await waiting == [(1,)]


@pytest.mark.parametrize("first", [True, False])
async def test_a_connection_that_breaks_in_the_middle_of_several_statements_raises(
    connection: Connection, admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any], first: bool
) -> None:
    """In either of them, prepared with it or before; the next call has another connection."""
    both: tuple[LiteralString, ...] = (WAIT, "SELECT %(n)s + 1") if first else ("SELECT %(n)s + 1", WAIT)
    for times in (1, 2):
        with admin.transaction():
            shut(admin)
            stuck = asyncio.create_task(connection.pipeline(both, {"n": Int8(1)}))
            await until(watcher, SOMEBODY_WAITS)
            terminate(watcher)
            with pytest.raises(ConnectionLost, match="terminating connection"):
                await stuck
        assert [(times,)] in await connection.pipeline(both, {"n": Int8(1)})


async def test_a_reset_that_comes_with_a_reply_is_noticed_immediately(where: str) -> None:
    """The call has its reply, and the next one a connection of its own: it waits for nothing."""
    with proxy(where) as network:
        async with aclosing(Connection(Target.parse(network.url), "affinity connection", HOT)) as connection:
            pid = await connection.run(PID)
            line = network.lines[-1]
            line.resets = True
            call = asyncio.create_task(connection.run(PID))
            await asyncio.sleep(0)  # it is sent
            assert line.was_reset.wait(PATIENCE)  # while the loop stands still
            assert _has_ended(connection)
            assert await call == pid
            with anyio.fail_after(PATIENCE / 2):
                assert await connection.run(PID) not in ([], pid)


def _has_ended(connection: Connection) -> bool:
    """Wait, without the loop, until the reset has come."""
    assert connection._protocol is not None
    end = select.poll()
    end.register(connection._protocol._socket, 0)
    return bool(end.poll(PATIENCE * 1000))


async def test_the_server_notices_a_host_that_is_gone(connection: Connection) -> None:
    """Within a worker's lease, though it waits for the rest of a request and sends nothing itself."""
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    idle, interval, count, user_timeout = [
        int((await connection.run("SELECT setting FROM pg_settings WHERE name = %(name)s", {"name": name}))[0][0])
        for name in names
    ]
    assert 0 < idle + interval * count < 15
    assert 0 < user_timeout < 15_000


async def test_a_call_that_is_not_answered_ends(
    connection: Connection,
    admin: psycopg.Connection[Any],
    watcher: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection is closed, its statement is not cancelled; the time of a call begins when it has the
    connection.
    """
    monkeypatch.setattr(connections, "CALL_TIMEOUT", 1.0)
    await connection.run(WAIT)  # prepared: that would wait too, and would be all that goes on
    with admin.transaction():
        shut(admin)
        stuck = [asyncio.create_task(connection.run(WAIT)) for _ in range(2)]
        waiting = asyncio.create_task(connection.run("SELECT 1"))
        with pytest.raises(ConnectionLost, match="no answer within 1 s"):
            await stuck[0]
        monkeypatch.setattr(
            connections, "CALL_TIMEOUT", PATIENCE
        )  # of calls that begin from now on: the second has begun
        with pytest.raises(ConnectionLost, match="no answer within"):
            await stuck[1]
        assert await waiting == [(1,)]
    await until(watcher, PASSED_TWICE)
    assert await connection.run(WAIT) == [(3,)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sslrootcert": "system"}, "certificate verify failed"),
        ({"sslrootcert": "/nowhere.pem"}, "does not exist"),
        ({"sslmode": "disable", "sslrootcert": ""}, "closed the connection"),
    ],
)
async def test_a_server_that_does_not_prove_who_it_is_gets_no_call(
    postgres_database: str, tmp_path: Path, change: dict[str, str], why: str
) -> None:
    """Nor does TLS fall back to none."""
    with tls_front(postgres_database, tmp_path) as front:
        settings = {"sslmode": "verify-full", "sslrootcert": str(front.authority)} | change
        async with aclosing(Connection(Target.parse(front.url(**settings)), "affinity connection", HOT)) as connection:
            with pytest.raises(ConnectionLost, match=why):
                await connection.run(PID)


# --- abandoned calls --------------------------------------------------------------------------------------------------


async def test_a_call_that_had_not_begun_never_does(
    connection: Connection, admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any]
) -> None:
    """The abandoned call ends first, and later calls are served, on the same connection."""
    pid = await connection.run(PID)
    with admin.transaction():
        shut(admin)
        begun, never, behind = (asyncio.create_task(connection.run(statement)) for statement in (WAIT, WAIT, PID))
        await until(watcher, SOMEBODY_WAITS)
        for call in (begun, never):
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert not behind.done()
    assert await behind == pid
    assert await connection.run(WAIT) == [(2,)]


async def test_an_abandoned_call_that_is_not_answered_delays_no_other_call(
    connection: Connection,
    admin: psycopg.Connection[Any],
    watcher: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later calls have another connection; its statement is not cancelled."""
    await connection.run(WAIT)
    monkeypatch.setattr(connections, "CANCELLED_CALL_TIMEOUT", 0.1)
    with admin.transaction():
        shut(admin)
        begun, behind = (asyncio.create_task(connection.run(statement)) for statement in (WAIT, "SELECT 1"))
        await until(watcher, SOMEBODY_WAITS)
        begun.cancel()
        assert await behind == [(1,)]
    await until(watcher, PASSED_TWICE)
    assert await connection.run(WAIT) == [(3,)]


async def test_an_error_that_comes_with_a_cancellation_is_no_news(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller is notified, and asyncio does not complain that its result is unread."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    end = Connection._end

    def end_and_cancel(connection: Connection, outcome: Outcome) -> None:
        end(connection, outcome)
        call.cancel()

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "_end", end_and_cancel)
        call = asyncio.create_task(connection.run("SELECT 1 / 0"))
        with pytest.raises(asyncio.CancelledError):
            await call
    gc.collect()
    assert complaints == []
    assert await connection.run("SELECT 1") == [(1,)]


async def test_an_attempt_to_connect_without_a_waiting_caller_is_cancelled(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the grace; a later call makes an attempt of its own."""
    attempts = 0
    connect = connections.connect

    async def second(target: Target, conninfo: str) -> AsyncConnection[Any]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await anyio.sleep_forever()
        return await connect(target, conninfo)

    monkeypatch.setattr(connections, "connect", second)
    monkeypatch.setattr(connections, "CANCELLED_CALL_TIMEOUT", 0.05)
    with anyio.move_on_after(0.01):
        await connection.run(WAIT)
    assert await connection.run(WAIT) == [(1,)]
    assert attempts == 2


async def test_a_connection_that_is_made_in_the_grace_serves_the_next_call(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that it was made for is not sent any more."""
    attempts = 0
    go = anyio.Event()
    connect = connections.connect

    async def slow(target: Target, conninfo: str) -> AsyncConnection[Any]:
        nonlocal attempts
        attempts += 1
        await go.wait()
        return await connect(target, conninfo)

    monkeypatch.setattr(connections, "connect", slow)
    with anyio.move_on_after(0.01):
        await connection.run(WAIT)
    go.set()
    assert await connection.run(WAIT) == [(1,)]
    assert attempts == 1


# --- closing ----------------------------------------------------------------------------------------------------------


async def test_closing_ends_every_call(
    connection: Connection, admin: psycopg.Connection[Any], watcher: psycopg.Connection[Any]
) -> None:
    """The call under way, whose statement is not cancelled, and the waiting ones; once is enough, twice is no harm."""
    await connection.run(WAIT)
    with admin.transaction():
        shut(admin)
        calls = [asyncio.create_task(connection.run(WAIT)) for _ in range(3)]
        await until(watcher, SOMEBODY_WAITS)
        await connection.aclose()
        for call in calls:
            with pytest.raises(ConnectionLost, match="the provider was closed"):
                await call
        await connection.aclose()
    with pytest.raises(ConnectionLost, match="the provider is closed"):
        await connection.run(WAIT)
    await until(watcher, PASSED_TWICE)
    await until(watcher, NOBODY_WAITS)
    assert admin.execute("SELECT passed FROM affinity.gate").fetchone() == (2,)


async def test_a_cancelled_close_leaves_no_connection_open(postgres_database: str) -> None:
    """Each has an attempt to connect that is slow to end."""
    links = Connections(Target.parse(postgres_database), "affinity")
    for each in links._all:
        await each.run("SELECT")
        each._spawn(asyncio.sleep(PATIENCE))
    pgconns = [each._protocol._pgconn for each in links._all if each._protocol is not None]
    with anyio.CancelScope() as scope:
        scope.cancel()
        await links.aclose()
    assert scope.cancelled_caught
    assert [each.status for each in pgconns] == [ConnStatus.BAD] * 3
    for each in links._all:
        for task in each._tasks:
            task.cancel()


async def test_closing_does_not_wait_for_a_connection(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is given up."""

    async def never(_: str) -> AsyncConnection[Any]:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(connections, "connect", never)
    call = asyncio.create_task(connection.run(WAIT))
    await anyio.sleep(0)
    await connection.aclose()
    assert not connection._tasks
    with pytest.raises(ConnectionLost, match="the provider was closed"):
        await call


async def test_closing_waits_for_a_silent_server_only_so_long(
    connection: Connection,
    admin: psycopg.Connection[Any],
    watcher: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may not even answer the request to stop."""

    async def never(_: AsyncConnection[Any], *, timeout: float) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(AsyncConnection, "cancel_safe", never)
    monkeypatch.setattr(connections, "CLOSE_TIMEOUT", 0.05)
    with admin.transaction():
        shut(admin)
        call = asyncio.create_task(connection.run(WAIT))
        await until(watcher, SOMEBODY_WAITS)
        with anyio.fail_after(PATIENCE):
            await connection.aclose()
        with pytest.raises(ConnectionLost, match="the provider was closed"):
            await call
        with anyio.fail_after(PATIENCE):
            while connection._tasks:
                await anyio.sleep(0)
