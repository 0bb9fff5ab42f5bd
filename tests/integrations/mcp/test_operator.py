"""The tools of an operator, called by a client of the protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import click
import mcp
import pytest
from mcp import StdioServerParameters

import affinity
from affinity import Wake
from affinity.conversation import AgentMessage, ConfirmationAnswer, ToolConfirmation, ToolResult, ToolUse, UserMessage
from affinity.errors import InvalidOptions
from affinity.integrations.command import mcp as command
from affinity.integrations.mcp import OperatorAction, operator_server
from tests.conversation.application import Chat, Stage, stage
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

MARK = "s3cret"
LOOKS = {
    *("needs_a_person", "why", "list_instances", "show_instance", "transcript", "session", "errors", "workers"),
}
ACTIONS = {"answer", "cancel", "resume", "rerun", "release"}

app = affinity.App("work")


@app.activity
async def fail(ctx: affinity.ActivityContext, text: str) -> None:
    """Fail with this text."""
    raise ValueError(text)


@app.orchestration
async def pay(ctx: affinity.OrchestrationContext, text: str) -> None:
    """Fail in an activity."""
    await ctx.schedule_activity(fail, text)


@app.orchestration
async def waits(ctx: affinity.OrchestrationContext, text: str) -> str:
    """Wait for an event."""
    await ctx.schedule_wait("go")
    return text


async def handler(wake: Wake, chat: Chat) -> None:
    """Look something up, and ask whether to pay."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            wake.append(ToolUse("look", {"what": event.text}, "t"))
            wake.append(ToolResult("t", {"found": event.text}))
            wake.require(ToolConfirmation("refund", {"reason": event.text}))
        if isinstance(event, ConfirmationAnswer):
            wake.append(AgentMessage("paid" if event.allowed else f"not paid: {event.reason}"))


@asynccontextmanager
async def assistant(url: str, **options: Any) -> AsyncIterator[tuple[Stage, mcp.Client]]:
    """A fleet with some work, and a client of the server."""
    async with stage(url, handler, app) as on:
        await on.client.start(waits, MARK, instance_id="waits", labels={"tenant": "acme"})
        with pytest.raises(affinity.errors.OrchestrationFailed):
            await (await on.client.start(pay, MARK, instance_id="pays")).wait(60)
        await on.talk("chat").ask(UserMessage(MARK), timeout=60)
        async with mcp.Client(operator_server(on.client, **options)) as client:
            yield on, client


async def call(client: mcp.Client, tool: str, **arguments: Any) -> Any:
    """The answer of a tool as JSON."""
    result = await client.call_tool(tool, arguments)
    text = "".join(each.text for each in result.content if each.type == "text")
    assert not result.is_error, text
    return json.loads(text)


async def refused(client: mcp.Client, tool: str, **arguments: Any) -> str:
    """The error of a tool."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return "".join(each.text for each in result.content if each.type == "text")


async def test_what_an_assistant_sees(url: str) -> None:
    async with assistant(url) as (_, client):
        tools = (await client.list_tools()).tools
        assert {each.name for each in tools} == LOOKS
        assert all(each.annotations is not None and each.annotations.read_only_hint for each in tools)
        person = await call(client, "needs_a_person")
        assert [(each["conversation_id"], each["asks"]["tool"]) for each in person["requests"]] == [("chat", "refund")]
        assert (person["suspended"], person["unserved"], person["has_more"]) == ([], [], False)
        why = await call(client, "why", instance_id="waits")
        assert why["status"] == "running"
        assert "'go'" in why["waits_for"]
        failed = await call(client, "why", instance_id="pays")
        assert failed["waits_for"] is None
        assert MARK in failed["error"]
        listed = await call(client, "list_instances", labels={"tenant": "acme"}, status="running")
        assert [each["instance_id"] for each in listed["instances"]] == ["waits"]
        shown = await call(client, "show_instance", instance_id="pays")
        assert [(each["name"], each["status"]) for each in shown["activities"]] == [("fail", "failed")]
        entries = (await call(client, "transcript", conversation_id="chat"))["entries"]
        assert [each["text"] for each in entries if "text" in each] == [MARK]
        assert [each["arguments"] for each in entries if "tool" in each] == [{"what": MARK}]
        assert (await call(client, "session", session_id="chat"))["life"]["holdings"][0]["worker_id"] == "w0"
        (group,) = [each for each in (await call(client, "errors"))["groups"]["groups"] if each["kind"] == "activity"]
        assert (group["name"], group["error_type"], group["instance_id"]) == ("fail", "ValueError", "pays")
        assert MARK in group["error"]
        assert [each["worker_id"] for each in (await call(client, "workers"))["workers"]] == ["w0"]


async def test_pages_go_on(url: str) -> None:
    async with assistant(url) as (_, client):
        first = await call(client, "list_instances", limit=1)
        rest = await call(client, "list_instances", limit=50, after=first["next"])
        found = [each["instance_id"] for each in [*first["instances"], *rest["instances"]]]
        assert sorted(found) == ["chat", "pays", "waits"]
        assert "not a cursor" in await refused(client, "list_instances", after="x")


async def test_without_payloads_no_tool_has_a_value(url: str) -> None:
    async with assistant(url, hide_payloads=True) as (_, client):
        for tool, arguments in (
            ("needs_a_person", {}),
            ("why", {"instance_id": "pays"}),
            ("show_instance", {"instance_id": "pays"}),
            ("show_instance", {"instance_id": "waits"}),
            ("transcript", {"conversation_id": "chat"}),
            ("errors", {}),
        ):
            assert MARK not in json.dumps(await call(client, tool, **arguments)), tool
        why = await call(client, "why", instance_id="waits")  # a sentence may quote the text of an error
        assert (why["code"], why["waits_for"]) == ("event", "(hidden)")


async def test_actions_are_there_where_they_are_allowed_and_are_audited(url: str) -> None:
    async with assistant(url, allow=["answer", "cancel"], user="ann") as (on, client):
        tools = (await client.list_tools()).tools
        assert {each.name for each in tools} == LOOKS | {"answer", "cancel"}
        (request,) = (await call(client, "needs_a_person"))["requests"]
        given = {"conversation_id": "chat", "request_id": request["request_id"]}
        await call(client, "answer", **given, allowed=False, reason="too much")

        async def has_answered() -> bool:
            said = await on.talk("chat").history(kinds=[AgentMessage])
            return [each.event.text for each in said if isinstance(each.event, AgentMessage)] == ["not paid: too much"]

        await until(has_answered)
        assert "RequestNotPending" in await refused(client, "answer", **given, allowed=True)
        await call(client, "cancel", instance_id="waits", reason="enough")
        assert (await on.client.wait_finished("waits", 60)).status == "cancelled"
        entries = await on.client.audit()
        assert {(each.user, each.source, each.action) for each in entries} >= {
            ("ann", "mcp", "answer"),
            ("ann", "mcp", "cancel"),
        }


async def test_instances_are_started_again_and_sessions_released(url: str) -> None:
    async with assistant(url, allow=["rerun", "release", "resume"]) as (on, client):
        again = (await call(client, "rerun", instance_id="pays"))["started"]
        assert again != "pays"
        assert (await on.client.wait_finished(again, 60)).status == "failed"
        assert (await call(client, "release", session_id="chat"))["session_id"] == "chat"
        assert "waits" in await refused(client, "resume", instance_id="waits")


async def test_errors_are_read_by_the_assistant(url: str) -> None:
    async with assistant(url) as (_, client):
        assert "UnknownInstance" in await refused(client, "why", instance_id="nobody")
        assert "UnknownConversation" in await refused(client, "transcript", conversation_id="nobody")
        for tool, arguments in (("why", {}), ("why", {"instance_id": ""}), ("errors", {"hours": 100})):
            assert "validation error" in await refused(client, tool, **arguments)


@pytest.mark.parametrize("allow", ["answer", ["everything"], [3]])
async def test_what_is_no_action_is_refused(sqlite_url: str, allow: Any) -> None:
    async with affinity.Client(sqlite_url) as client:
        with pytest.raises(InvalidOptions, match="allow"):
            operator_server(client, allow=allow)


def test_the_command_knows_all_actions() -> None:
    """It lists them without the library, for its help."""
    choices = [each.type.choices for each in command.params if isinstance(each.type, click.Choice)]
    assert choices == [("all", *get_args(OperatorAction))]


async def test_the_command_serves_them(tmp_path: Path) -> None:
    """A process of its own, which an assistant starts."""
    url = f"sqlite:///{tmp_path}/affinity.db"
    await affinity.migrate(url)
    async with affinity.Client(url) as own:
        await own.start("elsewhere", 1, instance_id="i")
    arguments = ["-m", "affinity", "mcp", "--url", url, "--allow", "cancel"]
    async with mcp.Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:
        assert {each.name for each in (await client.list_tools()).tools} == LOOKS | {"cancel"}
        assert "waits for a worker: none is alive" in (await call(client, "why", instance_id="i"))["waits_for"]
