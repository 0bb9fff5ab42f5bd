"""Graphs that run in wakes of conversations, and in activities.

The thread is the truth about a run. Its newest checkpoint says which run has written it (``run_id`` of the metadata),
and up to which entry of the journal the graph has been given the inputs (``affinity_read``).

* A run begins with its input if the thread has no checkpoint of it, and goes on from the last one otherwise. So an
  attempt that follows on a crash repeats the tasks of one super-step at most, and of those only the unfinished ones.
* An interrupt becomes a request of a `WakeRun`, which has the same id in all wakes in which it goes on. The request is
  named after the interrupt and the number of answers that its task has had: a task that asks twice asks two requests.
  A task that has failed behind an answer looks in its thread as if it asked once more. So one that has had answers, and
  whose request is not in the journal, runs first.
* A run whose wake has failed for good has been given its inputs. When these are tried one by one, it goes on.
* A thread that was copied for a fork, or that a deleted conversation of the same id has left, has positions of another
  journal. So inputs that are new to a wake count as not given.
* What has arrived while a run waits is given to the next run. It may begin in the same wake. If it fails there, the run
  before it has ended: the next attempt takes its values from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack

import anyio
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import RESUME
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, StateSnapshot
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from affinity import ActivityContext, Conversations, RetryPolicy, Wake
from affinity.conversation import (
    AgentMessage,
    AnswerEvent,
    ConfirmationAnswer,
    CustomToolResult,
    CustomToolUse,
    JournalEntry,
    JournalEvent,
    RequestEvent,
    RequestExpired,
    UserInterrupt,
    UserMessage,
    WakeRun,
)
from affinity.errors import InvalidOptions, NotSerializable
from affinity.integrations.langgraph.checkpointer import AffinitySaver
from affinity.integrations.langgraph.fence import ThreadConflict
from affinity.user_code import check_function

RUN: Final = "langgraph"
"""Name of the runs of wakes. It is stored: it stays."""

KEY: Final = "langgraph/"
"""What the ``call_key`` of the request for an interrupt begins with. It is stored: it stays."""

READ: Final = "affinity_read"
"""Key in the metadata of checkpoints: the inputs of the conversation that the graph has got. It is stored: it stays."""

WAKE: Final = "affinity_wake"
"""Key in the metadata of checkpoints: the wake in which they were written. It is stored: it stays."""

_PAGE: Final = 500
"""Entries of a journal that are read together."""

ToInput: TypeAlias = Callable[[Sequence[JournalEvent]], Any]
ToReply: TypeAlias = Callable[[Any], JournalEvent | None]
ToRequest: TypeAlias = Callable[[Interrupt], RequestEvent]
Graph: TypeAlias = Pregel[Any, Any, Any, Any]


class Thread(BaseModel):
    """The state of a conversation whose thread has everything: nothing."""


def messages_of(events: Sequence[JournalEvent]) -> Any:
    """Return the input of a graph with ``messages``: the messages of users. None: there are none."""
    found = [{"role": "user", "content": event.text} for event in events if isinstance(event, UserMessage)]
    return {"messages": found} if found else None


def reply_of(values: Any) -> JournalEvent | None:
    """Return the last message of a graph with ``messages``, if the model has written it."""
    messages = values.get("messages") if isinstance(values, Mapping) else None
    last = messages[-1] if isinstance(messages, Sequence) and messages else None
    if not isinstance(last, AIMessage) or not (text := str(last.text)):
        return None
    usage: Mapping[str, Any] = last.usage_metadata or {}
    return AgentMessage(text, usage={name: number for name, number in usage.items() if isinstance(number, int)})


def request_of(interrupt: Interrupt) -> RequestEvent:
    """Return the request for an interrupt: `CustomToolUse` of the tool ``interrupt``, with its value as arguments."""
    try:
        value = to_jsonable_python(interrupt.value)
    except ValueError as error:
        raise NotSerializable(f"the value of an interrupt has no JSON form: {error}") from error
    return CustomToolUse("interrupt", arguments=value if isinstance(value, dict) else {"value": value})


def answer_of(event: JournalEvent) -> Any:
    """Return what ``interrupt()`` returns: whether a `ConfirmationAnswer` allows, the result of a `CustomToolResult`,
    or another answer as it is. None, which is false, for an error, and if no answer came in time.
    """
    if isinstance(event, ConfirmationAnswer):
        return event.allowed
    if isinstance(event, CustomToolResult):
        return None if event.is_error else event.result
    return None if isinstance(event, RequestExpired) else event


class RunOptions(TypedDict, total=False):
    """Options of `run_graph`."""

    to_input: ToInput
    """Makes the graph's input of the events that have arrived; None: there is nothing to do. By default `messages_of`.
    """
    to_reply: ToReply
    """Makes the event that is appended when the graph has ended, of the values of its state; None: no event. By default
    `reply_of`.
    """
    to_request: ToRequest
    """Makes the request for an interrupt; by default `request_of`. Its field ``call_key``, if it has one, is set by
    `run_graph`; without it, give interrupts that wait together different contents, and a request stays when a program
    has changed the thread.
    """
    expires_in: float | timedelta | None
    """Seconds, or a timedelta, until a request counts as refused; None, the default: it waits forever."""
    config: RunnableConfig
    """Of LangGraph, such as ``recursion_limit`` and ``callbacks``."""
    context: Any
    """Of the graph, as ``ainvoke`` takes it."""
    stream: bool
    """Show readers the words of models as they come, as is the default; the commit of the wake replaces them."""


async def run_graph(wake: Wake, graph: Graph, **options: Unpack[RunOptions]) -> Any:
    """Run a graph for what has arrived, on the thread whose id is that of the conversation.

    ::

        @chats.on_wake
        async def respond(wake: affinity.Wake, state: Thread) -> None:
            await run_graph(wake, graph)

    Runs of one thread follow one another on the worker that holds the conversation. After a crash the next attempt goes
    on from the last super-step. An interrupt of the graph is a request of the conversation; when all requests are
    answered, a later wake resumes the graph. Inputs that come while it waits are for the run after that.

    Args:
        wake: of the conversation.
        graph: compiled with an `AffinitySaver`, without breakpoints.
        options: see `RunOptions`.

    Returns:
        The values of the graph's state, when it has ended; None while it waits for an answer, or had nothing to do.

    Raises:
        InvalidOptions: the graph has no `AffinitySaver`, or has breakpoints.
        ThreadConflict: another writer has written to the thread.
        NotSerializable, PayloadTooLarge: a request has no JSON form, or is too large.
        Exception: the error of a node. The wake is repeated, as after any error of its handler.
    """
    config, context, shows = options.get("config"), options.get("context"), options.get("stream", True)
    runner = _Runner(graph, wake.conversation_id, config, context, wake=wake, shows=shows)
    to_input, to_reply = options.get("to_input", messages_of), options.get("to_reply", reply_of)
    to_request, expires_in = options.get("to_request", request_of), options.get("expires_in")
    values = None
    while True:
        async with wake.run(RUN) as run:
            has_begun, read = await runner.look(run.id)
            if read is not None and runner.is_of_other_journal and wake.pending:
                read = min(read, wake.pending[0].seq - 1)
            if not has_begun:
                _withdraw_others(wake, {})
                given, read = to_input(await _inputs(wake, read)), wake.read_up_to
                if given is None and not await _was_cut_off(wake, runner, to_input):
                    return values
                await runner.drive(given, run.id, read)
            while (asked := await runner.waiting()) is not None:
                answers: dict[str, Any] = {}
                if not has_begun or await _have_asked(wake, asked, read):
                    _withdraw_others(wake, asked)
                    answers = await _ask(run, asked, to_request, expires_in)
                has_begun = False
                await runner.drive(Command(resume=answers) if answers else None, run.id, read)
            if not runner.is_at_end:
                _withdraw_others(wake, {})
            values = await runner.values()
        if run.is_paused:
            return None
        if (reply := to_reply(values)) is not None:
            wake.append(reply)


async def call_graph(
    ctx: ActivityContext,
    graph: Graph,
    value: Any,
    *,
    config: RunnableConfig | None = None,
    context: Any = None,
) -> Any:
    """Run a graph in an activity, on the thread whose id is that of the activity's session::

        await ctx.schedule_activity(answer, text).on_session("thread-7", ordered=True)

    Runs of one thread then follow one another on the worker that holds the session. A later attempt of the activity
    goes on from the last super-step. Without ``ordered=True`` two runs of one thread can meet, and one of them is
    refused. For interrupts use `run_graph`: an activity has no request to wait for.

    Returns:
        The values of the graph's state.

    Raises:
        InvalidOptions: the activity has no session; or see `run_graph`; or the graph was interrupted.
        ThreadConflict: another writer has written to the thread.
        Exception: the error of a node.
    """
    if ctx.session_id is None:
        raise InvalidOptions("call_graph needs an activity on a session: its id is the thread's")
    runner = _Runner(graph, ctx.session_id, config, context)
    key = ctx.idempotency_key
    has_begun, _ = await runner.look(key)
    await runner.drive(None if has_begun else value, key, None)
    if await runner.waiting() is not None:
        raise InvalidOptions(
            "the graph was interrupted: use run_graph in a conversation, whose requests can be answered"
        )
    return await runner.values()


def graph_conversations(
    graph: Graph, *, kind: str, retry: RetryPolicy | None = None, **options: Unpack[RunOptions]
) -> Conversations[Thread]:
    """Return the conversations of a kind whose handler runs a graph: see `run_graph`. Their retries are those of
    `affinity.Conversations.on_wake`.

    ::

        chats = graph_conversations(graph, kind="chat")
        app.include(chats)

    Raises:
        InvalidOptions: see `run_graph`; or a function takes other arguments.
    """
    check_graph(graph)
    for name, parameter in (("to_input", "events"), ("to_reply", "values"), ("to_request", "interrupt")):
        if name in options:
            check_function(options.get(name), name, parameter)
    conversations = Conversations(Thread, kind=kind)

    async def respond(wake: Wake, thread: Thread) -> None:
        await run_graph(wake, graph, **options)

    conversations.on_wake(retry=retry)(respond)
    return conversations


def check_graph(graph: Graph) -> AffinitySaver:
    """Return the checkpointer of a graph.

    Raises:
        InvalidOptions: it is no `AffinitySaver`, or the graph has breakpoints.
    """
    saver = graph.checkpointer
    if not isinstance(saver, AffinitySaver):
        raise InvalidOptions("the graph has no AffinitySaver: compile it with checkpointer=AffinitySaver(url)")
    if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
        raise InvalidOptions("a graph with interrupt_before or interrupt_after cannot run here: use interrupt()")
    return saver


class _Runner:
    """A graph on a thread."""

    def __init__(
        self,
        graph: Graph,
        thread_id: str,
        config: RunnableConfig | None,
        context: Any,
        *,
        wake: Wake | None = None,
        shows: bool = False,
    ) -> None:
        self._saver = check_graph(graph)
        self._graph, self._context, self._shown = graph, context, wake if shows else None
        self._base: RunnableConfig = config or {}
        self._stopped_at: str | None = None
        self._thread_id = thread_id
        self._wake_id = None if wake is None else wake.id
        self._thread: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        self._end: RunnableConfig | None = None
        self._written_in: str | None = None

    @property
    def is_of_other_journal(self) -> bool:
        """Whether wakes of another journal have written to the thread last: ids of wakes begin with that of theirs."""
        if self._written_in is None or self._wake_id is None:
            return False
        return self._written_in.rsplit("-", 2)[0] != self._wake_id.rsplit("-", 2)[0]

    @property
    def is_at_end(self) -> bool:
        """Whether the run has ended, and another one of the same wake has begun."""
        return self._end is not None

    async def look(self, run_id: str) -> tuple[bool, int | None]:
        """Return whether this run has written to the thread, and up to which input the graph was given them.

        Raises:
            ThreadConflict: another run has written behind it, and not in an earlier attempt of this wake, in which this
                run had ended.
        """
        self._end = None
        found = await self._saver._last_run(self._thread_id, run_id)
        if found is None:
            return False, None
        about: Mapping[str, Any] = found.metadata
        self._written_in = about.get(WAKE)
        if found.run_id == run_id or not found.has_run:
            return found.run_id == run_id, about.get(READ)
        if self._wake_id is None or about.get(WAKE) != self._wake_id:
            reason = f"run {found.run_id!r} has gone on in it before run {run_id!r} has ended"
            raise ThreadConflict(self._thread_id, "", reason)
        async for last in self._saver.alist(self._thread, filter={"run_id": run_id}, limit=1):
            self._end, about = last.config, last.metadata
        return True, about.get(READ)

    async def values(self) -> Any:
        """Return the values of the state, at the end of the run."""
        return (await self._graph.aget_state(self._end or self._thread)).values

    async def waiting(self) -> dict[str, tuple[Interrupt, int]] | None:
        """Return the interrupts that wait, as `asked`; none: the graph can go on. None: it has ended.

        A super-step whose tasks have all ended, and on which no checkpoint has followed yet, has no ``next``: it has
        tasks.

        Raises:
            InvalidOptions: it has stopped twice at the same place without an interrupt.
        """
        if self.is_at_end:
            return None
        state = await self._graph.aget_state(self._thread, subgraphs=True)
        asked = await self.asked(state)
        if not state.tasks:
            return None
        place = None if asked else state.config["configurable"].get("checkpoint_id")
        if place is not None and place == self._stopped_at:
            names = ", ".join(sorted({task.name for task in state.tasks}))
            raise InvalidOptions(f"the graph stops at {names} without interrupt(), and does not go on")
        self._stopped_at = place
        return asked

    async def drive(self, value: Any, run_id: str, read: int | None) -> None:
        """Run the graph until it ends, or is interrupted."""
        about = {"run_id": run_id} if read is None else {"run_id": run_id, READ: read, WAKE: self._wake_id}
        config: RunnableConfig = {
            **self._base,
            "configurable": {**self._base.get("configurable", {}), **self._thread["configurable"]},
            "metadata": {**self._base.get("metadata", {}), **about},
        }
        mode: Literal["messages", "values"] = "values" if self._shown is None else "messages"
        parts: AsyncIterator[Any] = self._graph.astream(
            value, config, context=self._context, stream_mode=mode, durability="sync"
        )
        async for part in parts:
            if self._shown is not None and isinstance(part[0], AIMessageChunk) and (text := str(part[0].text)):
                self._shown.stream(text)

    async def asked(self, state: StateSnapshot) -> dict[str, tuple[Interrupt, int]]:
        """Return the interrupts that wait, by id, each with the number of answers that its task has had. In LangGraph
        1.2.0 a task that asks a second time is none of ``state.next``.
        """
        found: dict[str, tuple[Interrupt, int]] = {}
        for task in state.tasks:
            if isinstance(task.state, StateSnapshot) and task.state.interrupts:
                found |= await self.asked(task.state)
            elif task.interrupts and (answers := await self._answers(state.config, task.id)) is not None:
                found |= {interrupt.id: (interrupt, answers) for interrupt in task.interrupts}
        return found

    async def _answers(self, config: RunnableConfig, task_id: str) -> int | None:
        """Return the number of answers that a task has had; None: it has ended, and its interrupt is an old one."""
        saved = await self._saver.aget_tuple(config)
        writes = (saved.pending_writes if saved is not None else None) or []
        of_task = [(channel, value) for task, channel, value in writes if task == task_id]
        if any(channel not in WRITES_IDX_MAP for channel, _ in of_task):
            return None
        return sum(len(value) if isinstance(value, list) else 1 for channel, value in of_task if channel == RESUME)


async def _inputs(wake: Wake, read: int | None) -> Sequence[JournalEvent]:
    """Return the inputs that the graph has not got. None of the thread's checkpoints says what it has got: those of
    this wake. An interrupt stops what came before it.
    """
    found: list[JournalEvent] = []

    def take(entries: Sequence[JournalEntry]) -> None:
        for entry in entries:
            if isinstance(entry.event, UserInterrupt):
                found.clear()
            if not _is_answer(entry.event):
                found.append(entry.event)

    if read is None:
        take(wake.pending)
        return found
    while read < wake.read_up_to:
        entries = await wake.history(after=read, before=wake.read_up_to + 1, limit=_PAGE)
        take([each for each in entries if each.wake_id is None and not each.kind.startswith("conversation.")])
        if len(entries) < _PAGE:
            break
        read = entries[-1].seq
    return found


def _is_answer(event: JournalEvent) -> bool:
    return isinstance(event, AnswerEvent | RequestExpired)


async def _was_cut_off(wake: Wake, runner: _Runner, to_input: ToInput) -> bool:
    """Return whether a run that was given these inputs has not ended: a wake has failed for good, and its inputs are
    tried one by one. This one goes on in its place.
    """
    inputs = [event for event in wake.events if not _is_answer(event)]
    return wake.interrupt is None and to_input(inputs) is not None and await runner.waiting() is not None


async def _ask(
    run: WakeRun,
    asked: Mapping[str, tuple[Interrupt, int]],
    to_request: ToRequest,
    expires_in: float | timedelta | None,
) -> dict[str, Any]:
    """Return the answers to interrupts, by their ids, when all are there; until then, this leaves the run's block."""
    answers: dict[str, Any] = {}

    async def ask(interrupt_id: str, interrupt: Interrupt, number: int) -> None:
        request = to_request(interrupt)
        if "call_key" in type(request).model_fields:
            request = request.model_copy(update={"call_key": _key_of(interrupt_id, number)})
        answers[interrupt_id] = answer_of(await run.require(request, expires_in=expires_in))

    async with anyio.create_task_group() as tasks:
        for interrupt_id, (interrupt, number) in sorted(asked.items()):
            tasks.start_soon(ask, interrupt_id, interrupt, number)
    return answers


async def _have_asked(wake: Wake, asked: Mapping[str, tuple[Interrupt, int]], read: int | None) -> bool:
    """Return whether those that have had answers have asked again, and not failed: the journal has their requests."""
    keys = {_key_of(interrupt_id, number) for interrupt_id, (_, number) in asked.items() if number}
    keys -= {_call_key(request.event) for request in wake.requests}
    while keys and (entries := await wake.history(after=read, limit=_PAGE)):
        keys -= {_call_key(each.event) for each in entries}
        read = entries[-1].seq
    return not keys


def _call_key(event: JournalEvent) -> str:
    return str(getattr(event, "call_key", ""))


def _withdraw_others(wake: Wake, asked: Mapping[str, tuple[Interrupt, int]]) -> None:
    """Withdraw the requests of interrupts that no longer wait: a program has changed the thread since, such as by
    ``update_state``.
    """
    keys = {_key_of(interrupt_id, number) for interrupt_id, (_, number) in asked.items()}
    for request in wake.requests:
        key = _call_key(request.event)
        if key.startswith(KEY) and key not in keys:
            wake.withdraw(request.request_id)


def _key_of(interrupt_id: str, number: int) -> str:
    return f"{KEY}{interrupt_id}.{number}"
