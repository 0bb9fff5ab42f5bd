"""``affinity conversation``: what people see of conversations, and what they send."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import affinity
from affinity.cli.help import MISUSED, REFUSED, TIMED_OUT, UNKNOWN
from affinity.conversation import ToolEnded, ToolStarted, UserMessage
from affinity.conversation.command.show import line_of
from affinity.conversation.journal import Description
from affinity.limits import MAX_PAGE
from examples.chat_api.chat import chats
from tests.cli.conftest import launch, refused, succeed
from tests.support.worker_processes import PATIENCE, open_workers


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database with a worker for the conversations of `examples/chat_api`."""
    found = f"sqlite:///{tmp_path_factory.mktemp('cli') / 'affinity.db'}"
    succeed("migrate", "--url", found)
    with open_workers(found) as workers:
        workers.start("one", "examples.chat_api.chat:app")
        yield found


def output(url: str, *words: str) -> Any:
    return json.loads(succeed("conversation", *words, "--url", url, "--json"))


def ask(url: str, chat: str, text: str, *words: str) -> Any:
    return output(url, "ask", chat, text, "--kind", "chat", "--timeout", "60", *words)


def test_a_question_and_its_reply(url: str) -> None:
    assert succeed("conversation", "ask", "c1", "hi", "--kind", "chat", "--url", url).strip() == "you said 'hi'"
    first = ask(url, "c1", "again", "--event-id", "m-2")
    assert (first["text"], first["stop_reason"]) == ("you said 'again'", "end_turn")
    assert ask(url, "c1", "again", "--event-id", "m-2") == first


def test_what_happened_is_shown_in_order(url: str) -> None:
    ask(url, "c2", "hello")
    lines = succeed("conversation", "events", "c2", "--url", url).splitlines()
    assert [line.split()[0] for line in lines] == [str(n) for n in range(1, len(lines) + 1)]
    assert "user.message" in lines[0]
    assert lines[0].endswith("hello")
    picked = succeed("conversation", "events", "c2", "--kind", "agent.message", "--json", "--url", url)
    assert json.loads(picked)["event"]["content"] == "you said 'hello'"
    last = succeed("conversation", "events", "c2", "--last", "1", "--url", url)
    assert "conversation.idle" in last


def test_a_request_is_shown_and_answered_once(url: str) -> None:
    asked = ask(url, "c3", "refund 300")
    assert asked["stop_reason"] == "requires_action"
    (waiting,) = output(url, "list", "--requests")["items"]
    assert (waiting["conversation_id"], waiting["pending_requests"]) == ("c3", 1)
    shown = output(url, "show", "c3")
    assert shown["status"] == "requires_action"
    (request,) = output(url, "requests", "c3")
    assert request["event"]["arguments"] == {"cents": 300}
    output(url, "answer", "c3", request["request_id"], "--allow")
    refused(REFUSED, "conversation", "answer", "c3", request["request_id"], "--refuse", "--url", url)


def test_a_list_finds_by_owner_and_labels(url: str) -> None:
    """And shows them, as does the page of one."""

    async def create() -> None:
        async with affinity.Client(url) as client:
            about: Description = {"title": "Lost parcel", "owner": "ann", "labels": {"team": "eu", "tier": "gold"}}
            await client.conversation(chats, "c22").create(**about)

    anyio.run(create)
    for words in (["--owner", "ann"], ["--label", "team=eu"], ["--label", "team=eu", "--label", "tier=gold"]):
        (found,) = output(url, "list", *words)["items"]
        assert found == {**found, "title": "Lost parcel", "owner": "ann", "labels": {"team": "eu", "tier": "gold"}}
    assert output(url, "list", "--label", "team=us")["items"] == []
    assert "Lost parcel" in succeed("conversation", "list", "--owner", "ann", "--url", url)
    shown = succeed("conversation", "show", "c22", "--url", url)
    assert all(each in shown for each in ("Lost parcel", "ann", "team", "gold"))


def test_what_a_conversation_waits_for(url: str) -> None:
    """In a process that has imported no conversations before: the command adds their reasons."""
    succeed("conversation", "ask", "c25", "hi", "--kind", "chat", "--url", url)
    with launch("why", "c25", "--url", url, stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=PATIENCE)[0] == "'c25' waits for its next input\n"


def test_what_waits_over_all_conversations_is_shown(url: str) -> None:
    """With conditions and in pages; these are not of the requests of one."""
    for name in ("c23", "c24"):
        ask(url, name, "refund 300")

    async def describe() -> None:
        async with affinity.Client(url) as client:
            about: Description = {"title": "Big refund", "owner": "eve", "labels": {"tier": "two"}}
            await client.conversation(chats, "c24").describe(**about)

    anyio.run(describe)
    found = output(url, "requests", "--prefix", "c2")["items"]
    assert {"c23", "c24"} <= {each["conversation_id"] for each in found}
    for words in (
        ["--owner", "eve"],
        ["--label", "tier=two"],
        ["--prefix", "c24", "--kind", "agent.tool_confirmation"],
        ["--below", "c24"],
    ):
        (one,) = output(url, "requests", *words)["items"]
        assert (one["conversation_id"], one["title"], one["event"]["arguments"]) == (
            "c24",
            "Big refund",
            {"cents": 300},
        )
    assert output(url, "requests", "--owner", "eve", "--kind", "other.kind")["items"] == []
    page = output(url, "requests", "--prefix", "c23", "--limit", "1")
    assert len(page["items"]) == 1
    assert output(url, "requests", "--prefix", "c23", "--after", page["next"])["items"] == []
    text = succeed("conversation", "requests", "--owner", "eve", "--url", url)
    assert all(each in text for each in ("c24", one["request_id"], "300", "Big refund"))
    assert "of all conversations" in refused(MISUSED, "conversation", "requests", "c24", "--owner", "eve", "--url", url)


def test_title_owner_and_labels_are_changed(url: str) -> None:
    """What is not given stays; an empty title or owner is none."""
    settled = ask(url, "c30", "hello", "--until", "settled")
    assert settled["stop_reason"] == "end_turn"

    def described(*words: str) -> tuple[Any, ...]:
        assert output(url, "describe", "c30", *words) == {"described": "c30"}
        (found,) = output(url, "list", "--prefix", "c30")["items"]
        return found["title"], found["owner"], found["labels"]

    assert described("--title", "Lost", "--owner", "ann", "--label", "a=1", "--label", "b=2") == (
        "Lost",
        "ann",
        {"a": "1", "b": "2"},
    )
    assert described("--label", "c=3") == ("Lost", "ann", {"c": "3"})
    assert described("--owner", "", "--no-labels") == ("Lost", None, {})
    assert "they say what changes" in refused(MISUSED, "conversation", "describe", "c30", "--url", url)
    both = ("--no-labels", "--label", "a=1")
    assert "not both" in refused(MISUSED, "conversation", "describe", "c30", *both, "--url", url)


def test_a_list_shows_the_status_and_what_waits(url: str) -> None:
    ask(url, "c20", "hello")
    ask(url, "c21", "refund 300")
    items = output(url, "list", "--prefix", "c2")["items"]
    shown = {each["conversation_id"]: (each["status"], each["pending_from"]) for each in items}
    assert shown["c20"] == ("idle", None)
    assert shown["c21"] == ("requires_action", None)
    for status, name in (("idle", "c20"), ("requires_action", "c21")):
        (item,) = output(url, "list", "--status", status, "--prefix", name)["items"]
        assert item["conversation_id"] == name
        assert output(url, "list", "--status", "failed", "--prefix", name)["items"] == []
    head, row = succeed("conversation", "list", "--prefix", "c20", "--url", url).splitlines()
    assert head.split()[:6] == ["CONVERSATION", "KIND", "STATUS", "ENTRIES", "PENDING", "FROM"]
    assert row[head.index("STATUS") : head.index("ENTRIES")].strip() == "idle"
    assert row[head.index("PENDING") : head.index("REQUESTS")].strip() == ""
    assert "'failed'" in refused(MISUSED, "conversation", "list", "--status", "ended", "--url", url)


def test_the_trace_of_the_last_wake(url: str) -> None:
    reply = ask(url, "c4", "hello")
    text = succeed("conversation", "trace", "c4", "--url", url)
    assert "span.started" in text
    assert "span.completed" in text
    assert succeed("conversation", "trace", "c4", reply["wake_id"], "--url", url) == text
    assert "no-such-wake" in refused(UNKNOWN, "conversation", "trace", "c4", "no-such-wake", "--url", url)


def test_interrupt_terminate_and_delete(url: str) -> None:
    ask(url, "c5", "hello")
    assert output(url, "interrupt", "c5", "--reason", "enough")["seq"] > 1
    output(url, "terminate", "c5")
    assert "terminated" in refused(REFUSED, "conversation", "send", "c5", "hello?", "--url", url)
    assert output(url, "show", "c5")["status"] == "terminated"
    assert output(url, "delete", "c5", "--yes", "--timeout", "5") == {"deleted": True}
    assert "there is none" in refused(UNKNOWN, "conversation", "show", "c5", "--url", url)


def test_events_that_are_followed_end_with_an_instance_that_was_cancelled(url: str) -> None:
    ask(url, "c16", "hello")
    succeed("cancel", "c16", "--url", url)
    lines = succeed("conversation", "events", "c16", "--follow", "--url", url).splitlines()
    assert "its instance was cancelled" in lines[-1]
    output(url, "terminate", "c16", "--reason", "closed")
    assert "terminated" in succeed("conversation", "events", "c16", "--follow", "--url", url).splitlines()[-1]
    assert output(url, "list", "--terminated")["items"][0]["conversation_id"] == "c16"


def test_calls_of_tools_have_a_line() -> None:
    at: dict[str, Any] = {"wake_id": "w", "attempt": 1, "number": 1}
    started = ToolStarted(tool="look", tool_use_id="1", arguments={"at": "x\ny"}, **at)
    assert line_of(started) == '        > look {"at":"x\\ny"}'
    assert line_of(ToolEnded(tool_use_id="1", is_error=False, **at)) == "        < 1"
    assert line_of(ToolEnded(tool_use_id="1", is_error=True, **at)) == "        < 1 failed"


def test_a_fork_goes_on_from_an_entry_and_knows_its_origin(url: str) -> None:
    reply = ask(url, "c9", "hello")
    ask(url, "c9", "more")
    output(url, "fork", "c9", "c9-b", "--at", str(reply["seq"] + 4))
    assert ask(url, "c9-b", "other")["text"] == "you said 'other'"
    said = succeed("conversation", "events", "c9-b", "--kind", "user.message", "--json", "--url", url).splitlines()
    assert [json.loads(line)["event"]["content"] for line in said] == ["hello", "other"]
    family = output(url, "ancestors", "c9-b")
    assert [(each["conversation_id"], each["lineage"]) for each in family] == [("c9-b", "fork"), ("c9", None)]
    output(url, "fork", "c9", "c9-c", "--detach")
    assert [each["conversation_id"] for each in output(url, "ancestors", "c9-c")] == ["c9-c"]
    assert "fork" in succeed("conversation", "ancestors", "c9-b", "--url", url)
    ask(url, "c9-a", "another one")
    assert "in use" in refused(REFUSED, "conversation", "fork", "c9", "c9-a", "--url", url)


def test_events_of_any_kind_can_be_sent(url: str) -> None:
    event = '{"kind": "user.rated", "stars": 5}'
    seq = output(url, "send", "c6", "--event", event, "--kind", "chat")["seq"]
    found = succeed("conversation", "events", "c6", "--kind", "user.rated", "--json", "--url", url)
    assert json.loads(found)["seq"] == seq
    assert json.loads(found)["event"]["stars"] == 5


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("send", "none", "hi"), UNKNOWN, "give its --kind"),
        (("send", "c7", "--kind", "chat"), MISUSED, "give the TEXT"),
        (("send", "c7", "--kind", "chat", "--event", "[1]"), MISUSED, "JSON object with its kind"),
        (
            ("send", "c7", "--kind", "chat", "--event", '{"kind": "agent.message", "content": "x"}'),
            MISUSED,
            "wakes only",
        ),
        (("send", "c7", "--kind", "chat", "--event", '{"kind": "BAD"}'), MISUSED, "kind is like 'user.message'"),
        (("send", "c7", "--kind", "chat", "--event", '{"kind": "user.x", "a": 1, "_": {}}'), MISUSED, "the field '_'"),
        (
            ("send", "c7", "--kind", "chat", "--event", '{"kind": "user.interrupt", "reson": "enough"}'),
            MISUSED,
            "no field 'reson'; it has kind, reason, cancel, cascade",
        ),
        (("ask", "c7", "hi", "--kind", "chat", "--timeout", "nan"), MISUSED, "timeout = nan"),
        (("delete", "c7"), MISUSED, "give --yes\n"),
        (("answer", "c7", "r1"), MISUSED, "--allow, --refuse or --result"),
        (("answer", "c7", "r1", "--allow", "--error"), MISUSED, "contradicts"),
        (("answer", "c7", "r1", "--result", "1", "--reason", "x"), MISUSED, "contradicts"),
        (("events", "c7", "--last", "1", "--after", "2"), MISUSED, "contradicts"),
    ],
)
def test_mistakes_are_named_with_their_remedy(url: str, words: tuple[str, ...], code: int, text: str) -> None:
    assert text in refused(code, "conversation", *words, "--url", url)


def test_one_is_shown_among_many_whose_ids_begin_as_its_own(database: Path) -> None:
    url = f"sqlite:///{database}"  # without a worker

    async def send() -> None:
        async with affinity.Client(url) as client, anyio.create_task_group() as tasks:
            await client.conversation(chats, "many").send(UserMessage("first"))
            for number in range(MAX_PAGE):
                tasks.start_soon(client.conversation(chats, f"many/{number}").send, UserMessage("later"))

    anyio.run(send)
    assert output(url, "show", "many")["conversation_id"] == "many"


def test_a_position_within_a_stream_is_one_of_entries_too(url: str) -> None:
    ask(url, "c17", "hello")
    words = ("conversation", "events", "c17", "--after", "3.1.2.gone", "--url", url)
    lines = succeed(*words).splitlines()
    assert lines[0].split()[0] == "4"
    assert "void" not in lines[-1]


def test_a_reply_that_does_not_come_in_time_has_an_exit_code(url: str) -> None:
    slow = " ".join(["word"] * 60)
    words = ("conversation", "ask", "c8", slow, "--kind", "chat", "--timeout", "0.2", "--url", url)
    assert "not replied within" in refused(TIMED_OUT, *words)


def test_entries_that_were_removed_before_they_were_read_are_named(url: str) -> None:
    seq = ask(url, "c18", "hello")["seq"]
    succeed("conversation", "prune", "--max-entries", "2", "--yes", "--url", url)
    text = refused(UNKNOWN, "conversation", "events", "c18", "--after", str(seq), "--url", url)
    assert "retention has removed entries 2 to 5; read the kept entries from 0" in text
    shown = succeed("conversation", "events", "c18", "--url", url).splitlines()
    assert [line.split()[0] for line in shown] == ["6", "7"]
