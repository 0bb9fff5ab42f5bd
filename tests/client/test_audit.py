"""Who acts: `Client.acting_as`, and the actions that leave entries."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, LiteralString, cast

import pytest
from pydantic import BaseModel

from affinity import Client, ConversationHandle, Conversations, Event, ExternalEvent, Start, migrate, sync
from affinity.actions import ACTORS
from affinity.audit import AuditEntry, acting_where_kept
from affinity.audit.store.contract import AuditProvider
from affinity.conversation import UserMessage
from affinity.errors import (
    EventIdConflict,
    InstanceExists,
    InvalidId,
    InvalidInput,
    InvalidOptions,
    ProviderError,
    UnknownConversation,
    UnknownInstance,
    UnknownWorker,
)
from affinity.limits import MAX_AUDIT_TEXT_BYTES, MAX_ID_BYTES
from affinity.provider.contract import Provider, Quotas
from affinity.provider.postgres.driver.calls import Calls
from affinity.provider.sqlite.driver.database import Database
from affinity_conformance.providers.builders import state
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


class Chat(BaseModel):
    """A state."""


chats = Conversations(Chat, kind="chat")


async def entries(client: Client) -> list[AuditEntry]:
    """Oldest first."""
    return [each async for each in client.audit()][::-1]


async def is_recorded(client: Client, action: str) -> bool:
    return any(each.action == action for each in await entries(client))


async def test_the_actions_have_their_names(client: Client) -> None:
    """Each call that writes is one action, whatever it calls itself; what a call reads, and a trial, is none."""
    talk, schedules, manager = client.conversation(chats, "talk"), client.schedules, client.session_manager
    assert isinstance(talk, ConversationHandle)
    start = datetime.now(UTC) - timedelta(hours=5)
    for name, parent in (("r", None), ("child", "r")):
        await client.session_store.save(state(name, parent=parent))
    with client.acting_as("ann", source="suite"):
        await client.start_many([Start("flow", 1, "i"), Start("flow", 2, "j")])
        await client.raise_events([ExternalEvent("i", "e"), ExternalEvent("none", "e")])
        asking = asyncio.create_task(client.ask("i", Event("e", str, reply=str)("secret")))
        await until(lambda: is_recorded(client, "ask"))
        asking.cancel()
        await client.handle("j").cancel(reason="enough")
        await client.set_quotas(Quotas(instances=50))
        await talk.create(title="secret")
        await talk.describe(title="secret too")
        await talk.send(UserMessage("secret"))
        await talk.fork("copy")
        await schedules.create("nightly", "flow", every=3600)
        await schedules.update("nightly", every=7200)
        await schedules.pause("nightly", reason="migration")
        await schedules.resume("nightly")
        await schedules.trigger("nightly")
        await schedules.backfill("nightly", start=start, end=start + timedelta(hours=2, microseconds=-1))
        await schedules.delete("nightly")
        lines = [line async for line in manager.export()]
        await manager.prune(older_than=0.0)
        await manager.import_(lines)
        await manager.delete("r")
        await client.delete("j", force=True)
        await client.prune(older_than=0.0, dry_run=True)
        await client.prune_conversations(max_entries=0)
        await talk.delete()
    found = await entries(client)
    assert {(each.user, each.source, each.role) for each in found} == {("ann", "suite", None)}
    assert [(each.action, each.kind, each.target, each.outcome, each.succeeded) for each in found] == [
        ("start", "instance", "i", "done", True),
        ("start", "instance", "j", "done", True),
        ("raise", "instance", "i", "delivered", True),
        ("raise", "instance", "none", "unknown", False),
        ("ask", "instance", "i", "delivered", True),
        ("cancel", "instance", "j", "delivered", True),
        ("set quotas", "", "", "done", True),
        ("create", "conversation", "talk", "created", True),
        ("describe", "conversation", "talk", "done", True),
        ("send", "conversation", "talk", "appended", True),
        ("fork", "conversation", "talk", "created", True),
        ("create", "schedule", "nightly", "done", True),
        ("update", "schedule", "nightly", "done", True),
        ("pause", "schedule", "nightly", "done", True),
        ("resume", "schedule", "nightly", "done", True),
        ("trigger", "schedule", "nightly", "done", True),
        ("backfill", "schedule", "nightly", "done", True),
        ("delete", "schedule", "nightly", "done", True),
        ("prune", "session", "child", "done", True),
        ("prune", "session", "r", "done", True),
        ("import", "session", "child", "done", True),
        ("import", "session", "r", "done", True),
        ("delete", "session", "r", "done", True),
        ("delete", "session", "child", "done", True),
        ("delete", "instance", "j", "deleted", True),
        ("prune", "conversation", "", "removed 0", False),
        ("delete", "conversation", "talk", "deleted", True),
        ("delete", "conversation", "talk", "done", True),
    ]
    assert "secret" not in str([each.details for each in found])
    by_action = {(each.kind, each.action): each.details for each in found}
    assert by_action["instance", "cancel"] == {"reason": "enough"}
    assert by_action["instance", "ask"] == {"event": "e"}
    assert by_action["conversation", "send"] == {"event": "user.message"}
    assert by_action["conversation", "fork"] == {"new_id": "copy"}
    assert by_action["schedule", "pause"] == {"reason": "migration"}


async def test_a_refused_action_has_one_entry(client: Client) -> None:
    """With the error as its outcome; an action on several has one for each."""
    await client.start("flow", instance_id="there")
    with client.acting_as("ann"):
        with pytest.raises(UnknownInstance):
            await client.reset("none", to_event=1)
        with pytest.raises(UnknownWorker):
            await client.drain_worker("none")
        with pytest.raises(InvalidId):
            await client.cancel("")
        with pytest.raises(UnknownConversation):
            await client.conversation(chats, "none").retry(10**5000)
        with pytest.raises(InvalidInput):
            await client.schedules.create("s", "flow")
        with pytest.raises(InstanceExists):
            await client.start_many([Start("flow", 1, "new"), Start("other", 1, "there")])
    found = await entries(client)
    assert [(each.action, each.target, each.outcome, each.succeeded) for each in found] == [
        ("reset", "none", "UnknownInstance", False),
        ("drain", "none", "UnknownWorker", False),
        ("cancel", "", "InvalidId", False),
        ("retry", "none", "UnknownConversation", False),
        ("create", "s", "InvalidSchedule", False),
        ("start", "new", "done", True),
        ("start", "there", "unchanged", False),
    ]


async def test_users_of_tasks_are_apart(client: Client, url: str) -> None:
    """Calls that would share a batch do not: each has its transaction and its user."""
    await client.start("flow", instance_id="i")
    talk = client.conversation(chats, "talk")

    async def send(user: str) -> None:
        if not user:
            await talk.send(UserMessage(user))
            return
        with client.acting_as(user):
            await talk.send(UserMessage(user))

    with client.acting_as("zoe"):
        other = await Client(url).__aenter__()  # whose tasks are of no user
    await asyncio.gather(*[send(user) for user in ("ann", "", "bob", "eve", "")])
    await other.conversation(chats, "talk").send(UserMessage("six"))
    await other.__aexit__(None, None, None)
    assert sorted(each.user for each in await entries(client)) == ["ann", "bob", "eve"]
    assert len(await talk.history()) == 6
    assert ACTORS.get() == ()


async def test_appends_of_several_users_are_one_statement(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its entry, in its transaction; so have asks of instances, and appends without a user have none."""
    statements: list[str] = []
    run, write = Calls.run, Database.write

    def note(self: Calls, statement: LiteralString, *args: Any, **named: Any) -> Any:
        statements.append(statement)
        return run(self, statement, *args, **named)

    def note_write(self: Database, *args: Any, **named: Any) -> Any:
        statements.append("write")
        return write(self, *args, **named)

    async def send(client: Client, number: int) -> None:
        with client.acting_as(f"u{number % 3}") if number else nullcontext():
            await client.conversation(chats, f"c{number}").send(UserMessage("hi"))

    async with Client(any_url) as client:
        await client.conversation(chats, "first").send(UserMessage("hi"))
        monkeypatch.setattr(Calls, "run", note)
        monkeypatch.setattr(Database, "write", note_write)
        await asyncio.gather(*[send(client, number) for number in range(20)])
        sent = [each for each in statements if "notify" not in each]
        assert len(sent) == 1, sent
        with client.acting_as("bob"), pytest.raises(EventIdConflict):
            await asyncio.gather(
                *[client.conversation(chats, "x").send(UserMessage(text), event_id="e") for text in "ab"]
            )
        found = await entries(client)
    assert {(each.target, each.user, each.action, each.succeeded) for each in found if each.user != "bob"} == {
        (f"c{number}", f"u{number % 3}", "send", True) for number in range(1, 20)
    }
    refused = [(each.action, each.target, each.succeeded) for each in found if each.user == "bob"]
    assert sorted(refused) == [("send", "x", False), ("send", "x", True)]


async def test_a_user_is_stated_for_one_database(client: Client, tmp_path: Path) -> None:
    """Of one context: calls on another database are not this user's, or are of the user who is stated there."""
    there = f"sqlite:///{tmp_path}/there.db"
    await migrate(there)
    store = client.session_manager
    async with Client(there) as other:

        async def act(number: int) -> None:
            for one in (client, other):
                await one.start("flow", instance_id=f"i{number}")
                with pytest.raises(UnknownInstance):
                    await one.cancel("none")
                await one.conversation(chats, f"talk{number}").send(UserMessage("a"))
                await one.session_store.save(state(f"s{number}"))
            await store.delete(f"s{number}")

        with client.acting_as("ann"):
            await act(1)
            assert await entries(other) == []
            with other.acting_as("bob"):
                await act(2)
            with other.acting_as("eve"), client.acting_as("zoe"):
                await act(3)
    async with Client(there) as other:
        found, found_there = await entries(client), await entries(other)
    done = ["start", "cancel", "send", "save_record"]
    by_user = [(user, action) for user in ("ann", "ann", "zoe") for action in [*done, "delete"]]
    assert [(each.user, each.action) for each in found] == by_user
    assert [(each.user, each.action) for each in found_there] == [
        (user, action) for user in ("bob", "eve") for action in done
    ]


async def test_a_call_without_a_user_has_no_entry(client: Client) -> None:
    """Nor a refused one."""
    assert ACTORS.get() == ()
    await client.start("flow", instance_id="i")
    await client.cancel("i")
    with pytest.raises(UnknownInstance):
        await client.cancel("none")
    assert await entries(client) == []


async def test_long_and_strange_texts(client: Client) -> None:
    """Names are refused, reasons are shortened, and pages are checked."""
    for name in ("x" * (MAX_ID_BYTES + 1), "a\x00b", "a\nb"):
        with pytest.raises(InvalidId):
            client.acting_as(name)
    with pytest.raises(InvalidId):
        client.acting_as("ann", source="")
    await client.start("flow", instance_id="i")
    with client.acting_as(""):
        await client.cancel("i", reason="é" * 10_000 + "\x01")
    (entry,) = await entries(client)
    assert entry.user == ""
    assert len(str(entry.details["reason"]).encode()) <= MAX_AUDIT_TEXT_BYTES
    with pytest.raises(InvalidInput):
        client.audit(user="\x00")
    page = await client.audit().page(limit=1)
    assert page.next is not None
    assert (await client.audit().page(page.next, limit=1)).items == []


async def test_an_entry_that_cannot_be_written(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a refused action it is in the log, and the caller has the error of the action."""

    async def fails(_: object) -> None:
        raise ProviderError("no disk")

    monkeypatch.setattr(client._open_provider, "write_audit", fails)
    with client.acting_as("ann"), pytest.raises(UnknownInstance):
        await client.cancel("none")
    assert "cancel of 'ann' was not recorded: no disk" in caplog.text
    assert await entries(client) == []


class WithoutAudit:
    """A provider of another database, which keeps no audit log."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        if hasattr(AuditProvider, name) and not hasattr(Provider, name):
            raise AttributeError(name)
        return getattr(self._provider, name)


async def test_a_database_without_an_audit_log_is_served_as_others(provider: Provider) -> None:
    """A caller who states a user is told; commands and the console, which always state one, work all the same."""
    async with Client.from_provider(cast(Provider, WithoutAudit(provider))) as client:
        for call in (lambda: client.acting_as("ann"), client.audit):
            with pytest.raises(InvalidOptions, match="lacks write_audit, list_audit: it has no AuditProvider"):
                await call()  # type: ignore[misc]  # the first one raises before
        with acting_where_kept(client, "ann", source="suite"):
            await client.start("flow", instance_id="i")
            assert ACTORS.get() == ()
    async with Client.from_provider(provider) as client:
        assert await entries(client) == []
        with acting_where_kept(client, "ann", source="suite"):
            await client.cancel("i")
        assert [entry.user for entry in await entries(client)] == ["ann"]


def test_sync_clients_act_too(url: str) -> None:
    """For the thread of the block."""
    with sync.Client(url) as client:
        with client.acting_as("ann", source="notebook"):
            client.start("flow", instance_id="i")
        client.start("flow", instance_id="j")
        assert [(each.user, each.source, each.target) for each in client.audit()] == [("ann", "notebook", "i")]


async def test_a_sync_client_in_a_thread_of_a_user_acts_for_the_user(client: Client, url: str) -> None:
    """Its loop is not the loop of the client that has stated the user."""

    def refused() -> None:
        with sync.Client(url) as other:
            other.start("flow", instance_id="i")
            with pytest.raises(UnknownInstance):
                other.cancel("none")

    with client.acting_as("ann"):
        await asyncio.to_thread(refused)
    await until(lambda: is_recorded(client, "cancel"))
    assert [(each.action, each.target, each.outcome) for each in await entries(client)] == [
        ("start", "i", "done"),
        ("cancel", "none", "UnknownInstance"),
    ]


def test_a_sync_client_outlives_the_loop_of_its_user(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal is then in the log; the caller has its error."""
    left: list[Context] = []

    async def state_user() -> None:
        async with Client(url) as client:
            with client.acting_as("ann"):
                left.append(copy_context())

    def refused() -> None:
        with sync.Client(url) as other, pytest.raises(UnknownInstance):
            other.cancel("none")

    asyncio.run(state_user())
    left[0].run(refused)
    assert "cancel of 'ann' was not recorded: Event loop is closed" in caplog.text
