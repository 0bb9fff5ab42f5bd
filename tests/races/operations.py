"""The racing operations on one conversation, and on one instance and its session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

import affinity
from affinity.client import IfEnded
from affinity.conversation import AgentMessage, ConfirmationAnswer, JournalEntry, ToolConfirmation, UserMessage
from affinity.conversation.journal import JournalRetention
from affinity.errors import (
    AffinityError,
    ClientError,
    ConversationExists,
    ConversationTerminated,
    InstanceFinished,
    InvalidInput,
    NoReply,
    OrchestrationError,
    RequestNotPending,
    SessionNotFound,
    SessionWriteConflict,
    UnknownConversation,
    UnknownEntry,
    UnknownInstance,
    WaitTimeout,
)
from affinity.provider.contract import FINISHED
from tests.programs.tables import Row, Tables, parsed
from tests.races.driver import Area, Operation, Stage, State

Errors: TypeAlias = Sequence[type[AffinityError]]


class Chat(BaseModel):
    """The state of a conversation, and of a session."""

    said: list[str] = []


# -- conversations

chats: Final = affinity.Conversations(Chat, kind="chat")
talks: Final = affinity.App("talks")


@chats.on_wake(retry=affinity.RetryPolicy(max_attempts=2, initial_interval=60.0))
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    """Replies to each message once; a message may ask for a confirmation, give work to a child, fail once, or be
    replied to later.
    """
    for due in wake.due:
        wake.append(AgentMessage(f"re {due.reason}"))
    for event in wake.events:
        match event:
            case UserMessage(text="confirm"):
                wake.require(ToolConfirmation(tool="refund", arguments={}))
            case UserMessage(text="delegate"):
                await wake.delegate(chats, f"{wake.conversation_id}k", UserMessage("confirm"))
            case UserMessage(text="later"):
                wake.revisit(60.0, key="later", reason="later")
            case UserMessage(text="flaky") if wake.attempt == 1:
                raise OSError("once")
            case UserMessage(text=text):
                chat.said.append(str(text))
                wake.append(AgentMessage(f"re {text}"))
            case ConfirmationAnswer():
                wake.append(AgentMessage("confirmed"))


talks.include(chats)


@talks.orchestration
async def other(ctx: affinity.OrchestrationContext) -> None:
    """An instance that is no conversation."""
    await ctx.schedule_wait("never")


def talk(stage: Stage, name: str = "c") -> affinity.ConversationHandle:
    return stage.client.conversation(chats, stage.id(name))


async def begin_talks(stage: Stage) -> None:
    """``c`` waits for a confirmation, and so does its child ``ck``; ``d`` is a fork of ``c``."""
    await talk(stage).ask(UserMessage("hello"))
    await (await talk(stage).fork(stage.id("d"))).ask(UserMessage("more"))
    for text in ("confirm", "delegate"):
        await talk(stage).send(UserMessage(text))
    await stage.env.run_until_idle()
    for name in ("c", "ck"):
        (request,) = await talk(stage, name).requests()
        stage.kept[name] = request.request_id
    stage.kept["export"] = [line async for line in talk(stage, "d").export()]


async def begin_nothing(stage: Stage) -> None:
    """There is only ``d``."""
    await talk(stage, "d").ask(UserMessage("more"))
    stage.kept["export"] = [line async for line in talk(stage, "d").export()]


def sending(text: str) -> Callable[[Stage], Awaitable[str]]:
    async def run(stage: Stage) -> str:
        await talk(stage).send(UserMessage(text))
        return "sent"

    return run


async def _ask(stage: Stage) -> str:
    reply = await talk(stage).ask(UserMessage("two"))  # one wake may reply to several inputs
    return "replied" if AgentMessage("re two") in reply.events else repr(reply.events)


async def _ask_again(stage: Stage) -> str:
    return (await talk(stage).ask(UserMessage("three"), event_id="e-3")).stop_reason


def interrupting(name: str = "c", **options: Any) -> Callable[[Stage], Awaitable[str]]:
    async def run(stage: Stage) -> str:
        await talk(stage, name).interrupt(**options)
        return "sent"

    return run


async def _interrupt_child_twice(stage: Stage) -> str:
    for _ in range(2):
        await talk(stage, "ck").interrupt(cancel_running=True)
    return "sent"


def answering(name: str) -> Callable[[Stage], Awaitable[str]]:
    async def run(stage: Stage) -> str:
        await talk(stage, name).answer(stage.kept[name], allowed=True)
        return "sent"

    return run


def terminating(name: str = "c", **options: Any) -> Callable[[Stage], Awaitable[None]]:
    async def run(stage: Stage) -> None:
        await talk(stage, name).terminate(**options)

    return run


def deleting(name: str = "c", **options: Any) -> Callable[[Stage], Awaitable[bool]]:
    async def run(stage: Stage) -> bool:
        return await talk(stage, name).delete(**options)

    return run


async def _fork(stage: Stage) -> None:
    await talk(stage).fork(stage.id("n"))


async def _fork_beside(stage: Stage) -> str:
    return (await (await talk(stage).fork(stage.id("b"), beside=True)).ask(UserMessage("four"))).text


async def _merge(stage: Stage) -> None:
    await talk(stage).merge(stage.id("d"), into=stage.id("n"))


async def _summarise(entries: Sequence[JournalEntry]) -> str:
    return "all of it"


async def _compress(stage: Stage) -> None:
    await talk(stage).compress(into=stage.id("n"), summarise=_summarise)


def importing(name: str) -> Callable[[Stage], Awaitable[None]]:
    async def run(stage: Stage) -> None:
        await talk(stage, name).import_(stage.kept["export"])

    return run


async def _export(stage: Stage) -> str:
    lines = [line async for line in talk(stage).export()]
    return "exported" if lines else "nothing"


async def _resume(stage: Stage) -> None:
    await talk(stage).resume()


async def _start_other(stage: Stage) -> str:
    await stage.client.start(other, instance_id=stage.id("n"))
    return "started"


async def _prune_journals(stage: Stage) -> None:
    await stage.client.journals.prune(JournalRetention(entries=1), 0, dry_run=False)


GONE: Final[Errors] = (UnknownConversation, ConversationTerminated)
REPLY: Final[Errors] = (*GONE, UnknownEntry)
MADE: Final[Errors] = (UnknownConversation, UnknownEntry, ConversationExists)

CONVERSATION: Final = (
    Operation("send", sending("one"), GONE),
    Operation("send_later", sending("later"), GONE, compares=False),
    Operation("send_flaky", sending("flaky"), GONE),
    Operation("delegate", sending("delegate"), GONE),
    Operation("ask", _ask, REPLY),
    Operation("ask_again", _ask_again, REPLY),
    Operation("interrupt", interrupting(), GONE),
    Operation("interrupt_running", interrupting(cancel_running=True), GONE),
    Operation("terminate", terminating(), GONE),
    Operation("terminate_cascade", terminating(cascade=True), GONE),
    Operation("delete", deleting(), (WaitTimeout,)),
    Operation("delete_cascade", deleting(cascade=True), (WaitTimeout,)),
    Operation("interrupt_child", interrupting("ck", cancel_running=True), GONE, compares=False),
    Operation("interrupt_child_twice", _interrupt_child_twice, GONE, atomic=False, compares=False),
    Operation("terminate_child", terminating("ck"), GONE),
    Operation("delete_child", deleting("ck"), (WaitTimeout,)),
)
"""Operations on a conversation, and on its child, that are there, or not."""


def cancelling(name: str) -> Callable[[Stage], Awaitable[None]]:
    async def run(stage: Stage) -> None:
        await stage.client.cancel(stage.id(name))

    return run


def removing(name: str, **options: Any) -> Callable[[Stage], Awaitable[None]]:
    """Delete the instance."""

    async def run(stage: Stage) -> None:
        await stage.client.delete(stage.id(name), force=True, **options)

    return run


def forgetting(name: str) -> Callable[[Stage], Awaitable[Hashable]]:
    """Delete the record of the session."""

    async def run(stage: Stage) -> Hashable:
        return len(await stage.client.session_manager.delete(stage.id(name), cascade=False))

    return run


def moving(name: str) -> Callable[[Stage], Awaitable[str]]:
    async def run(stage: Stage) -> str:
        holder = next((held.worker_id for held in await stage.env._own.list_sessions([stage.id(name)])), None)
        to = next(worker for worker in stage.env.workers if worker != holder)
        await stage.client.move_session(stage.id(name), to)
        return "moved or not"

    return run


def releasing(name: str) -> Callable[[Stage], Awaitable[str]]:
    async def run(stage: Stage) -> str:
        await stage.client.release_session(stage.id(name))
        return "released or not"

    return run


async def _prune(stage: Stage) -> None:
    await stage.client.prune(older_than=0, status=("completed", "failed", "cancelled"))


async def _prune_histories(stage: Stage) -> None:
    await stage.client.prune_histories(older_than=0)


async def _prune_records(stage: Stage) -> None:
    await stage.client.session_manager.prune(older_than=0)


TALKS: Final = (
    *CONVERSATION,
    Operation("interrupt_cascade", interrupting(cascade=True), GONE),
    Operation("answer", answering("c"), (*GONE, RequestNotPending)),
    Operation("fork", _fork, MADE),
    # Two calls: a prune between them removes the record that the first one has written.
    Operation("fork_beside", _fork_beside, (*MADE, *REPLY), but_not_with="prune_records"),
    Operation("merge", _merge, MADE),
    Operation("compress", _compress, MADE),
    Operation("export", _export, (UnknownConversation, UnknownEntry)),
    Operation("import", importing("n"), (ConversationExists,)),
    Operation("start_other", _start_other, (ClientError,)),
    Operation("resume", _resume, GONE),
    Operation("cancel", cancelling("c"), (UnknownInstance, InstanceFinished)),
    Operation("remove", removing("c"), (UnknownInstance,)),
    Operation("forget", forgetting("c"), (SessionNotFound,)),
    Operation("prune", _prune),
    Operation("prune_journals", _prune_journals, compares=False),
    Operation("prune_records", _prune_records),
    Operation("move", moving("c")),
    Operation("release", releasing("c")),
    Operation("cancel_child", cancelling("ck"), (UnknownInstance, InstanceFinished)),
    # A wake of its parent may pass an interrupt on, which drops an answer that is not read.
    Operation("answer_child", answering("ck"), (*GONE, RequestNotPending), but_not_with="interrupt_cascade"),
    Operation("remove_child", removing("ck"), (UnknownInstance,), compares=False),  # its parent may be notified before
    Operation("delete_fork", deleting("d"), (WaitTimeout,)),
)

NEW: Final = (
    *CONVERSATION,
    Operation("import", importing("c"), (ConversationExists,)),
    Operation("move", moving("c")),
    Operation("release", releasing("c")),
    Operation("remove", removing("c"), (UnknownInstance,)),
    Operation("forget", forgetting("c"), (SessionNotFound,)),
)


def of_conversations(stage: Stage, db: Tables) -> State:
    """Of each conversation: its journal, its instance and its record; of one that has ended: its inputs."""
    found: dict[str, Hashable] = {}
    journals = {row["session_id"]: row for row in db.rows["journals"] if stage.mine(row["session_id"])}
    records = {row["session_id"] for row in db.rows["session_states"]}
    for me in sorted(journals.keys() | filter_mine(stage, db.instances) | filter_mine(stage, records)):
        status = db.instances[me]["status"] if me in db.instances else None
        if me not in journals:
            found[stage.name(me)] = None, status, me in records
        elif status is None or status in FINISHED:
            found[stage.name(me)] = status, tuple(sorted(_entries(db, journals[me], "user.")))
        else:
            requests = sum(each["journal_id"] == journals[me]["journal_id"] for each in db.rows["journal_requests"])
            found[stage.name(me)] = status, me in records, requests, tuple(sorted(_entries(db, journals[me])))
    return found


def broken_promises(stage: Stage, db: Tables) -> Iterator[str]:
    """Of conversations."""
    yield from forgotten_delegations(stage, db)
    yield from interrupted_requests(stage, db)


def interrupted_requests(stage: Stage, db: Tables) -> Iterator[str]:
    """A request is pending that a later interrupt should have dropped."""
    for request in db.rows["journal_requests"]:
        entries = db.entries[request["journal_id"]].items()
        last = max((seq for seq, entry in entries if entry["kind"] == "user.interrupt"), default=0)
        if request["seq"] < last and stage.mine(me := db.journals[request["journal_id"]]["session_id"]):
            yield f"{stage.name(me)} has a request from before its interrupt {last}"


CHILD: Final = ("child.delegated", "child.ended")


def forgotten_delegations(stage: Stage, db: Tables) -> Iterator[str]:
    """A conversation waits for a child that has ended, and so will not answer."""
    ended = {me for me, row in db.instances.items() if row["status"] in FINISHED}
    for row in db.rows["journals"]:
        me, entries = row["session_id"], db.entries[row["journal_id"]].values()
        if stage.mine(me) and db.is_live(me):
            begun, over = ([parsed(each["payload"]) for each in entries if each["kind"] == kind] for kind in CHILD)
            answered = {each["delegation"] for each in over}
            for each in begun:
                if each["child"] in ended and each["delegation"] not in answered:
                    yield f"{stage.name(me)} waits for {stage.name(each['child'])}, which has ended"


def filter_mine(stage: Stage, ids: Any) -> set[str]:
    return {each for each in ids if stage.mine(each)}


def _entries(db: Tables, row: Row, kind: str = "") -> Iterator[str]:
    for seq in range(row["first_seq"], row["last_seq"] + 1):
        entry = db.entry(row, seq)
        if entry is None or not entry["kind"].startswith(kind):
            continue
        if not entry["kind"].startswith(("conversation.", "span.")):
            payload = parsed(entry["payload"])
            is_refused = (payload.get("error") or {}).get("type") == "DelegationRefused"  # by a child that has ended
            outcome = "terminated" if is_refused else payload.get("outcome")
            yield " ".join(str(each) for each in (entry["kind"], payload.get("text"), outcome) if each)


# -- instances

notes: Final = affinity.Sessions(Chat, kind="notes")
jobs: Final = affinity.App("jobs")
jobs.include(notes)
Command: Final = affinity.Event("command", str, reply=str)


@jobs.activity
async def note(ctx: affinity.ActivityContext, text: str) -> str:
    """Writes down a command."""
    async with notes.open(ctx) as chat:
        chat.said.append(text)
    return text


@jobs.orchestration
async def helper(ctx: affinity.OrchestrationContext) -> str:
    """Waits for one event."""
    return await ctx.schedule_wait("go", str)


@jobs.orchestration
async def job(ctx: affinity.OrchestrationContext, session: str) -> list[str]:
    """Does what it is sent; its session stays where it is meanwhile. It has a child in each execution."""
    done: list[str] = []
    child = ctx.schedule_sub_orchestration(helper, instance_id=f"{ctx.instance_id}k{ctx.execution_id}")
    is_over = False
    while True:
        command = ctx.schedule_wait(Command, hold_session=session, hold_for=3600)
        if not is_over:
            await ctx.wait_any(command, child)
            is_over = child.settled
            done += [await _end_of(child)] if is_over else []
        event = await command
        match event.data:
            case "note":
                await ctx.schedule_activity(note, "note").on_session(session, ordered=True)
            case "again":
                event.reply("again")
                ctx.continue_as_new(session)
            case "fail":
                raise ValueError("as it was asked")
        done.append(event.data)
        event.reply(f"did {event.data}")
        if event.data == "end":
            return done


async def _end_of(child: Any) -> str:
    try:
        return f"child {await child}"
    except OrchestrationError as error:
        return type(error).__name__


async def begin_job(stage: Stage) -> None:
    """``i`` has done something, and waits; so does its child ``ik1``."""
    run = await stage.client.start(job, stage.id("s"), instance_id=stage.id("i"))
    await run.ask(Command("note"))
    stage.kept["record"] = [line async for line in stage.client.session_manager.export([stage.id("s")])]


async def begin_ended_job(stage: Stage) -> None:
    """The same, and it has ended."""
    await begin_job(stage)
    await stage.client.ask(stage.id("i"), Command("end"))


def commanding(command: str) -> Callable[[Stage], Awaitable[str]]:
    async def run(stage: Stage) -> str:
        await stage.client.raise_event(stage.id("i"), Command(command))
        return "sent"

    return run


def asking(command: str, **options: Any) -> Callable[[Stage], Awaitable[str]]:
    async def run(stage: Stage) -> str:
        return await stage.client.ask(stage.id("i"), Command(command), **options)

    return run


async def _ask_or_start(stage: Stage) -> str:
    start = affinity.Start(job, stage.id("s"), if_ended="restart")
    return await stage.client.ask(stage.id("i"), Command("note"), start=start)


def starting(if_ended: IfEnded) -> Callable[[Stage], Awaitable[str]]:
    async def run(stage: Stage) -> str:
        await stage.client.start(job, stage.id("s"), instance_id=stage.id("i"), if_ended=if_ended)
        return "started"

    return run


async def _reset(stage: Stage) -> str:
    await stage.client.reset(stage.id("i"), to_event=2)
    return "reset"


async def _wait(stage: Stage) -> str:
    return repr(await stage.client.wait(stage.id("i")))


async def _go(stage: Stage) -> str:
    await stage.client.raise_event(stage.id("ik1"), "go", "now")
    return "sent"


async def _write_state(stage: Stage) -> None:
    async with notes.open(stage.id("s"), store=stage.client.session_store) as chat:
        chat.said.append("by hand")


async def _import_state(stage: Stage) -> None:
    await stage.client.session_manager.import_(stage.kept["record"], on_exists="replace")


ENDED: Final[Errors] = (UnknownInstance, InstanceFinished, NoReply)

JOBS: Final = (
    Operation("note", commanding("note"), ENDED),
    Operation("ask", asking("note"), ENDED),
    Operation("ask_key", asking("note", idempotency_key="k"), ENDED),
    Operation("ask_or_start", _ask_or_start, ENDED, atomic=False),
    Operation("again", commanding("again"), ENDED),
    Operation("end", commanding("end"), ENDED),
    Operation("fail", commanding("fail"), ENDED),
    Operation("start", starting("return"), ()),
    Operation("restart", starting("restart"), ()),
    Operation("start_new", starting("fail"), (InstanceFinished,)),
    Operation("cancel", cancelling("i"), ENDED),
    Operation("remove", removing("i"), (UnknownInstance,)),
    Operation("remove_alone", removing("i", keep_children=True), (UnknownInstance,)),
    Operation("reset", _reset, (UnknownInstance, InvalidInput)),
    Operation("go_child", _go, ENDED),
    Operation("cancel_child", cancelling("ik1"), ENDED),
    Operation("remove_child", removing("ik1"), (UnknownInstance,)),
    Operation("prune", _prune),
    Operation("prune_histories", _prune_histories),
    Operation("prune_records", _prune_records),
    Operation("move", moving("s")),
    Operation("release", releasing("s")),
    Operation("write_state", _write_state, (SessionWriteConflict,)),
    Operation("import_state", _import_state, (SessionWriteConflict,)),
    Operation("forget", forgetting("s"), (SessionNotFound,)),
)


def of_jobs(stage: Stage, db: Tables) -> State:
    """Of each instance: its status and what came of it, if its parent is there, which may have ended before it was
    removed; of the session: how often something was written.
    """
    found: dict[str, Hashable] = {}
    for me in sorted(filter_mine(stage, db.instances)):
        row = db.instances[me]
        has_parent = row["parent_id"] is None or row["parent_id"] in db.instances
        found[stage.name(me)] = (row["status"], row["output"]) if has_parent else "without its parent"
    for row in db.rows["session_states"]:
        if stage.mine(row["session_id"]):
            found[stage.name(row["session_id"])] = "record"
    return found


AREAS: Final = (
    Area("talks", talks, begin_talks, TALKS, of_conversations, broken_promises),
    Area("new", talks, begin_nothing, NEW, of_conversations, broken_promises),
    Area("jobs", jobs, begin_job, JOBS, of_jobs),
    Area("ended", jobs, begin_ended_job, JOBS, of_jobs),
)
