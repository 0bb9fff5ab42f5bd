"""Calls that change the lineage of conversations: create, fork, detach, merge, compress; one test for each promise.

A *row* is an entry of the journal, a *sandbox* is a `Resource`. More about sandboxes is in test_lineage_resources.py,
about the loop in test_loop.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Literal

import pytest

import affinity
from affinity.conversation import AgentMessage, JournalEntry, UserMessage
from affinity.errors import (
    ConversationExists,
    ConversationKindMismatch,
    InvalidInput,
    InvalidOptions,
    UnknownConversation,
    UnknownEntry,
)
from affinity.limits import MAX_PAYLOAD_BYTES
from tests.conversation.application import Chat, Stage, make, stage
from tests.conversation.lineage_helpers import LONG, rebuild, say, texts, words

pytestmark = pytest.mark.anyio

SIDES: Final[tuple[Literal["left", "right"], ...]] = ("left", "right")


@pytest.fixture
async def idle(url: str) -> Any:
    """A client, and no worker: inputs stay where they are."""
    async with stage(url, workers=0) as found:
        yield found


# --- create -----------------------------------------------------------------------------------------------------------


async def test_create_has_one_row_no_parents_and_no_sandbox(idle: Stage) -> None:
    talk = idle.talk("a")
    await talk.send(UserMessage("List files."))
    assert await texts(talk) == ["List files."]
    (itself,) = await talk.ancestors()
    assert (itself.conversation_id, itself.lineage, list(itself.parents), itself.home) == ("a", None, [], None)


async def test_rows_are_ordered_and_have_kinds(url: str) -> None:
    async with stage(url) as found:
        talk = found.talk("a")
        await say(talk, "one")
        entries = await talk.history()
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.kind for entry in entries if entry.kind.endswith("message")] == ["user.message", "agent.message"]


# --- fork -------------------------------------------------------------------------------------------------------------


async def test_fork_copies_the_rows(idle: Stage) -> None:
    talk = idle.talk("a")
    await talk.send(UserMessage("one"))
    fork = await talk.fork("b")
    assert await texts(fork) == ["one"]
    await fork.send(UserMessage("two"))
    await talk.send(UserMessage("other"))
    assert await texts(fork) == ["one", "two"]
    assert await texts(talk) == ["one", "other"]


async def test_fork_points_to_its_source(idle: Stage) -> None:
    talk = idle.talk("a")
    await talk.send(UserMessage("one"))
    fork = await talk.fork("b", operator="try twice", extras={"why": "budget"})
    itself, source = await fork.ancestors()
    assert (itself.lineage, itself.operator, itself.extras) == ("fork", "try twice", {"why": "budget"})
    assert list(itself.parents) == [source.journal_id]
    assert (source.conversation_id, itself.distance, source.distance, itself.at) == ("a", 0, 1, 1)


async def test_two_paths_start_from_one_state(url: str) -> None:
    async with stage(url) as found:
        talk = found.talk("a")
        await say(talk, "plan")
        left, right = await talk.fork("l"), await talk.fork("r")
        assert await say(left, "left") == "re: left"
        assert await say(right, "right") == "re: right"
        assert (await found.state("l")).received == ["plan", "left"]
        assert (await found.state("r")).received == ["plan", "right"]
        assert (await found.state("a")).received == ["plan"]


async def test_fork_answers_what_its_source_has_not_answered_yet(url: str) -> None:
    async with stage(url, workers=0) as before:
        await before.talk("a").send(UserMessage("open question"))
        await before.talk("a").fork("b")
    async with stage(url) as found:
        reply = await found.talk("b").reply(1, timeout=LONG)
        assert reply.text == "re: open question"


async def test_fork_at_an_earlier_entry_rebuilds_the_state(url: str) -> None:
    async with stage(url, make(rebuild=rebuild)) as found:
        talk = found.talk("a")
        first = await talk.ask(UserMessage("one"), timeout=LONG)
        await say(talk, "two")
        at = max(entry.seq for entry in first.entries)
        fork = await talk.fork("b", at=at)
        assert await texts(fork) == ["one", "re: one"]
        assert (await found.state("b")).received == ["one"]
        assert await say(fork, "instead") == "re: instead"
        assert (await found.state("b")).received == ["one", "instead"]


async def test_fork_at_an_earlier_entry_without_a_fold_begins_with_an_initial_state(url: str) -> None:
    async with stage(url) as found:
        talk = found.talk("a")
        await say(talk, "one")
        fork = await talk.fork("b", at=1)
        assert await texts(fork) == ["one"]
        assert (await found.state("b")).received == []


async def test_fork_of_nothing_and_of_what_is_not_there(idle: Stage) -> None:
    talk = idle.talk("a")
    with pytest.raises(UnknownConversation):
        await talk.fork("b")
    await talk.send(UserMessage("one"))
    for at in (2, -1):
        with pytest.raises(UnknownEntry):
            await talk.fork("b", at=at)
    assert await texts(await talk.fork("empty", at=0)) == []
    with pytest.raises(ConversationKindMismatch):
        await idle.talk("a", make(kind="other")).fork("b")


# --- detach -----------------------------------------------------------------------------------------------------------


async def test_detach_keeps_the_content_and_cuts_the_lineage(url: str) -> None:
    async with stage(url) as found:
        talk = found.talk("a")
        await say(talk, "one")
        detached = await talk.detach("b")
        assert await texts(detached) == ["one", "re: one"]
        (itself,) = await detached.ancestors()
        assert (itself.lineage, list(itself.parents)) == ("detach", [])
        await talk.delete()
        assert await say(detached, "two") == "re: two"
        assert await texts(detached) == ["one", "re: one", "two", "re: two"]


# --- merge ------------------------------------------------------------------------------------------------------------


async def test_merge_concatenates_and_names_both_parents(idle: Stage) -> None:
    left, right = idle.talk("l"), idle.talk("r")
    await left.send(UserMessage("from left"))
    await right.send(UserMessage("from right"))
    merged = await left.merge("r", into="m")
    assert await texts(merged) == ["from left", "from right"]
    itself, one, other = await merged.ancestors()
    assert (itself.lineage, list(itself.parents)) == ("merge", [one.journal_id, other.journal_id])
    assert (one.conversation_id, other.conversation_id) == ("l", "r")


async def test_merging_forks_takes_their_common_prefix_once(idle: Stage) -> None:
    """It is not doubled."""
    talk = idle.talk("a")
    await talk.send(UserMessage("shared"))
    left, right = await talk.fork("l"), await talk.fork("r")
    await left.send(UserMessage("left"))
    await right.send(UserMessage("right"))
    merged = await left.merge("r", into="m")
    assert await texts(merged) == ["shared", "left", "right"]
    again = await merged.merge("r", into="n")
    assert await texts(again) == ["shared", "left", "right"]


async def test_merge_keeps_the_left_state_or_the_given_one(url: str) -> None:
    async with stage(url) as found:
        await say(found.talk("l"), "left")
        await say(found.talk("r"), "right")
        await found.talk("l").merge("r", into="m")
        await found.talk("l").merge("r", into="n", state=Chat(received=["left", "right"]))
        assert (await found.state("m")).received == ["left"]
        assert (await found.state("n")).received == ["left", "right"]
        assert await say(found.talk("m"), "on") == "re: on"


async def test_merge_of_sides_with_different_sandboxes_is_refused(idle: Stage) -> None:
    for name in ("a", "b"):
        await idle.talk(name).send(UserMessage(name))
    left, right = await idle.talk("a").fork("l", beside=True), await idle.talk("b").fork("r", beside=True)
    with pytest.raises(InvalidOptions, match="name the side to keep"):
        await left.merge("r", into="m")
    kept = await left.merge("r", into="m", keep="right")
    assert (await kept.ancestors())[0].home == "b"
    with pytest.raises(InvalidOptions, match="keep = 'both'"):
        await left.merge("r", into="n", keep="both")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="with itself"):
        await right.merge("r", into="n")


async def test_merge_of_sides_with_one_sandbox_keeps_it(idle: Stage) -> None:
    talk = idle.talk("a")
    await talk.send(UserMessage("one"))
    left = await talk.fork("l", beside=True)
    await talk.fork("r", beside=True)
    await idle.talk("x").send(UserMessage("x"))
    assert (await (await left.merge("r", into="m")).ancestors())[0].home == "a"
    assert (await (await talk.merge("r", into="n")).ancestors())[0].home == "a"
    assert (await (await idle.talk("x").merge("a", into="o")).ancestors())[0].home is None


async def test_a_side_without_a_sandbox_is_ignored(idle: Stage) -> None:
    for name in ("a", "x"):
        await idle.talk(name).send(UserMessage(name))
    await idle.talk("a").fork("r", beside=True)
    for left, right in (("x", "r"), ("r", "x")):
        merged = await idle.talk(left).merge(right, into=f"m-{left}")
        assert (await merged.ancestors())[0].home == "a"
    kept = [await idle.talk("x").merge("r", into=f"m-{side}", keep=side) for side in SIDES]
    assert [(await each.ancestors())[0].home for each in kept] == ["x", "a"]


# --- usage ------------------------------------------------------------------------------------------------------------


async def spend(wake: affinity.Wake, chat: Chat) -> None:
    """Answer each message for ten tokens."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            chat.received.append(event.text)
            wake.append(AgentMessage(f"re: {event.text}", {"tokens": 10}))


async def test_usage_is_cumulative_across_loops(url: str) -> None:
    """It does not begin again with each loop."""
    async with stage(url, spend) as found:
        talk = found.talk("a")
        for number in range(1, 4):
            await say(talk, str(number))
            assert await talk.usage() == {"tokens": 10 * number}
        fork = await talk.fork("b")
        await say(fork, "4")
        assert await fork.usage() == {"tokens": 40}


@pytest.mark.parametrize("keep", [0, 5])
async def test_usage_does_not_shrink_when_retention_removes_entries(url: str, keep: int) -> None:
    async def summarise(entries: Sequence[JournalEntry]) -> AgentMessage:
        return AgentMessage("short", {"tokens": 3})

    totals: list[dict[str, int]] = []

    async def count(wake: affinity.Wake, chat: Chat) -> None:
        await spend(wake, chat)
        totals.append(await wake.total_usage())

    async with stage(url, count) as found:
        talk, other = found.talk("a"), found.talk("b")
        for number in range(3):
            await say(talk, f"{number}")
        await say(other, "other")
        early = await talk.compress(into="early", summarise=summarise)
        fork = await talk.fork("early-fork")
        await found.client.prune_conversations(max_entries=keep)
        assert await talk.usage() == await fork.usage() == {"tokens": 30}
        await say(talk, "on")
        assert totals[-1] == {"tokens": 40}
        late = await talk.compress(into="late", summarise=summarise)
        made = [
            await talk.fork("fork"),
            await talk.detach("detached"),
            await (await talk.fork("left")).merge("fork", into="both"),
            found.talk("copy"),
        ]
        await made[-1].import_([line async for line in talk.export()])
        assert [await each.usage() for each in made] == [{"tokens": 40}] * 4
        assert await late.usage() == {"tokens": 43}
        assert await (await early.merge("late", into="compressed")).usage() == {"tokens": 46}
        assert await (await talk.merge("b", into="m")).usage() == {"tokens": 50}
        await found.client.prune_conversations(max_entries=keep)
        assert [await each.usage() for each in made] == [{"tokens": 40}] * 4
        assert await found.talk("m").usage() == {"tokens": 50}


async def test_usage_of_a_merge_counts_each_entry_once(url: str) -> None:
    async with stage(url, spend) as found:
        talk = found.talk("a")
        await say(talk, "shared")
        left, right = await talk.fork("l"), await talk.fork("r")
        await say(left, "left")
        await say(right, "right")
        assert await (await left.merge("r", into="m")).usage() == {"tokens": 30}


async def test_usage_of_a_compression_goes_on_from_that_of_its_source(url: str) -> None:
    async def summarise(_: Sequence[JournalEntry]) -> AgentMessage:
        return AgentMessage("in short", {"tokens": 3})

    async with stage(url, spend) as found:
        talk = found.talk("a")
        await say(talk, "one")
        short = await talk.compress(into="s", summarise=summarise)
        assert await short.usage() == {"tokens": 13}
        await say(short, "two")
        assert await short.usage() == {"tokens": 23}
        again = await short.compress(into="t", summarise=summarise)
        assert await again.usage() == {"tokens": 26}
        fork = await again.fork("u")
        assert await fork.usage() == {"tokens": 26}
        await found.talk("v").import_([line async for line in fork.export()])
        assert await found.talk("v").usage() == {"tokens": 26}


# --- compress ---------------------------------------------------------------------------------------------------------


async def test_compress_leaves_the_summary_as_the_only_row(url: str) -> None:
    seen: list[str] = []

    async def summarise(entries: Sequence[JournalEntry]) -> str:
        seen.extend(words(entries))
        return "they said one"

    async with stage(url, make(rebuild=rebuild)) as found:
        talk = found.talk("a")
        await say(talk, "one")
        short = await talk.compress(into="s", summarise=summarise, extras={"by": "test"})
        assert seen == ["one", "re: one"]
        (entry,) = await short.history()
        assert (entry.kind, words([entry])) == ("user.message", ["they said one"])
        itself, source = await short.ancestors()
        size = (await talk.history(last=1))[-1].seq
        assert itself.extras["compression"] == {"lossy": True, "entries_in": size, "entries_out": 1}
        assert (itself.extras["by"], itself.lineage, source.conversation_id) == ("test", "compress", "a")
        assert (await found.state("s")).received == ["they said one"]
        assert await short.status() == "idle"  # the summary wakes nothing
        assert await say(short, "two") == "re: two"


@pytest.mark.parametrize(
    ("summary", "problem"),
    [
        (affinity.conversation.ToolUse("search"), "not ToolUse"),
        (" \n", "an empty summary"),
        (UserMessage([]), "an empty summary"),
        (affinity.conversation.AgentMessage([{"type": "text", "text": " "}]), "an empty summary"),
    ],
)
async def test_compress_takes_no_calls_of_tools_and_no_empty_summary(idle: Stage, summary: Any, problem: str) -> None:
    async def summarise(_: Sequence[JournalEntry]) -> Any:
        return summary

    await idle.talk("a").send(UserMessage("one"))
    with pytest.raises(InvalidInput, match=problem):
        await idle.talk("a").compress(into="s", summarise=summarise)
    with pytest.raises(UnknownConversation):
        await idle.talk("s").ancestors()


# --- the graph --------------------------------------------------------------------------------------------------------


async def test_a_result_is_traced_back_through_all_steps(idle: Stage) -> None:
    async def summarise(_: Sequence[JournalEntry]) -> str:
        return "short"

    await idle.talk("a").send(UserMessage("one"))
    await idle.talk("a").fork("b")
    await idle.talk("b").compress(into="c", summarise=summarise)
    await idle.talk("a").fork("d")
    merged = await idle.talk("c").merge("d", into="e", operator="join")
    found = await merged.ancestors()
    assert [each.conversation_id for each in found] == ["e", "c", "d", "b", "a"]
    assert [each.distance for each in found] == [0, 1, 1, 2, 2]
    assert [each.operator for each in found] == ["join", "compress", "fork", "fork", ""]


async def test_a_deep_graph_needs_no_recursion(idle: Stage) -> None:
    """Each parent exists before its child, so there are no cycles either: none is made under the id of an ancestor."""
    talk = idle.talk("g0")
    await talk.send(UserMessage("one"))
    for number in range(1, 60):
        talk = await talk.fork(f"g{number}")
    for name in ("g0", "g30", "g59"):
        with pytest.raises((ConversationExists, InvalidInput)):
            await talk.fork(name)
    assert [each.distance for each in await talk.ancestors()] == list(range(60))
    assert await texts(talk) == ["one"]


async def test_a_deleted_source_stays_in_the_graph(idle: Stage) -> None:
    talk = idle.talk("a")
    await talk.send(UserMessage("one"))
    fork = await talk.fork("b")
    further = await fork.fork("c")
    assert await talk.delete()
    assert await fork.delete()
    assert [each.conversation_id for each in await further.ancestors()] == ["c", None, None]
    assert await texts(further) == ["one"]


async def test_the_same_fork_twice_is_one(idle: Stage) -> None:
    talk = idle.talk("a")
    await talk.send(UserMessage("one"))
    fork = await talk.fork("b")
    await fork.send(UserMessage("two"))
    await talk.fork("b")
    assert await texts(fork) == ["one", "two"]
    with pytest.raises(ConversationExists):
        await talk.fork("b", operator="other")
    with pytest.raises(ConversationExists):
        await fork.fork("a")


async def test_content_state_and_lineage_go_together(url: str) -> None:
    """Exported and imported, a session is the same: one object a line."""
    async with stage(url) as found:
        await say(found.talk("a"), "one")
        fork = await found.talk("a").fork("b", operator="try", extras={"x": 1})
        await say(fork, "two")
        lines = [line async for line in fork.export()]
        heads = [next(iter(json.loads(line))) for line in lines]
        copy = found.talk("copy")
        await copy.import_(lines)
        await copy.import_(lines)
        assert await texts(copy) == await texts(fork) == ["one", "re: one", "two", "re: two"]
        assert (await found.state("copy")).received == ["one", "two"]
        (itself,) = await copy.ancestors()
        exported: Any = itself.extras["exported"]
        assert itself.lineage == "import"
        assert [(node["conversation_id"], node["operator"]) for node in exported] == [("b", "try"), ("a", "")]
        assert await say(copy, "three") == "re: three"
    assert heads[:5] == ["conversation", "ancestor", "record", "wake", "wake"]
    assert set(heads[5:]) == {"entry"}


def with_fields(line: str, **fields: Any) -> str:
    """The line of an entry with other fields."""
    return json.dumps({"entry": {**json.loads(line)["entry"], **fields}})


async def test_an_import_refuses_what_is_no_export(idle: Stage) -> None:
    talk = idle.talk("a")
    await talk.send(UserMessage("waits"), event_id="m-1")
    lines = [line async for line in talk.export()]
    for number, bad in (
        (1, [*lines[1:]]),
        (2, [lines[0], '{"entry":{}}']),
        (2, [lines[0], "no"]),
        (2, [lines[0], "[]"]),
        (3, [*lines[:2], with_fields(lines[1], event_id="x\0")]),
        (3, [*lines, lines[1]]),  # the event id of line 2
        (2, [lines[0], with_fields(lines[1], kind="User\n")]),
        (2, [lines[0], with_fields(lines[1], wake_id="")]),
        (2, [lines[0], with_fields(lines[1], payload={"kind": "user.message", "content": "x" * MAX_PAYLOAD_BYTES})]),
        (2, [lines[0], with_fields(lines[1], recorded_at="0001-01-01T00:00:00+14:00")]),
        (2, [lines[0], with_fields(lines[1], recorded_at="9999-12-31T23:59:59.999999Z")]),
    ):
        with pytest.raises(InvalidInput, match=f"line {number} "):
            await idle.talk("b").import_(bad)
    with pytest.raises(InvalidInput, match="begins with"):
        await idle.talk("b").import_([])
    with pytest.raises(ConversationKindMismatch):
        await idle.talk("b", make(kind="other")).import_(lines)
    with pytest.raises(ConversationExists):
        await talk.import_(lines)
    await idle.talk("b").import_(lines)
    assert words(await idle.talk("b").history(pending=True)) == ["waits"]


# --- in a wake --------------------------------------------------------------------------------------------------------


async def test_a_fork_of_a_wake_is_never_forgotten_and_never_made_twice(url: str) -> None:
    """The wake fails after it has forked, then is repeated. The graph has the fork once."""
    failures = [ValueError("a 429")]

    async def branch(wake: affinity.Wake, chat: Chat) -> None:
        chat.received += [event.text for event in wake.events if isinstance(event, UserMessage)]
        wake.append(AgentMessage("branching"))
        if wake.conversation_id == "a":
            await wake.fork("b", operator="branch", extras={"attempt": wake.attempt})
            with pytest.raises(ConversationExists):
                await wake.fork("b")
        if failures:
            raise failures.pop()

    async with stage(url, branch, retry=affinity.RetryPolicy(initial_interval=0.05)) as found:
        reply = await found.talk("a").ask(UserMessage("go"), timeout=LONG)
        fork = found.talk("b")
        itself, source = await fork.ancestors()
        assert (source.conversation_id, itself.operator, itself.extras["attempt"]) == ("a", "branch", 2)
        assert await texts(fork) == ["go", "branching"]
        assert itself.at == max(entry.seq for entry in reply.entries)
        assert (await found.state("b")).received == ["go"]
        assert await found.talk("a").status() == await fork.status() == "idle"
        assert await say(fork, "on") == "branching"


async def test_a_failed_wake_forks_nothing(url: str) -> None:
    async def branch(wake: affinity.Wake, _: Chat) -> None:
        await wake.fork("b")
        raise ValueError("no")

    async with stage(url, branch, retry=affinity.RetryPolicy(max_attempts=1)) as found:
        with pytest.raises(affinity.errors.WakeFailed):
            await found.talk("a").ask(UserMessage("go"), timeout=LONG)
        with pytest.raises(UnknownConversation):
            await found.talk("b").ancestors()


async def test_wakes_detach_merge_and_compress(url: str) -> None:
    async def summarise(entries: Sequence[JournalEntry]) -> str:
        return f"{len(words(entries))} messages"

    async def work(wake: affinity.Wake, _: Chat) -> None:
        wake.append(AgentMessage("done", {"tokens": 5}))
        if wake.conversation_id == "a":
            await wake.detach("d")
            await wake.compress(into="s", summarise=summarise)
            await wake.merge("x", "y", into="m")
            assert [each.conversation_id for each in await wake.ancestors()] == ["a"]
            assert await wake.total_usage() == {"tokens": 5}

    async with stage(url, work) as found:
        for name in ("x", "y", "a"):
            await say(found.talk(name), name)
        assert await texts(found.talk("d")) == ["a", "done"]
        assert await texts(found.talk("s")) == ["1 messages"]
        assert await texts(found.talk("m")) == ["x", "done", "y", "done"]
        assert await say(found.talk("m"), "on") == "done"
