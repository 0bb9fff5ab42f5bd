"""A run of agents of ADK over several wakes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from datetime import timedelta
from typing import Any, Final, NamedTuple

import google.adk.auth.auth_schemes  # noqa: F401 -- with FastAPI, which the first run would import in the event loop
from google.adk.agents import BaseAgent, RunConfig
from google.adk.apps import App
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from google.genai import types
from pydantic_core import from_json
from typing_extensions import override

from affinity.conversation import CustomToolUse, ToolConfirmation, Wake
from affinity.errors import WakeMisuse
from affinity.integrations.adk.copies import durable_compaction, durable_copy
from affinity.integrations.adk.recording import AgentSession, HasEvents, StepsOfRun, text_of
from affinity.integrations.adk.session_service import event_to_json, json_values
from affinity.integrations.agent_runs import REFUSED, StepOptions, current_number, opened, put, together

_CONFIRMATION: Final = "adk_request_confirmation"
"""Name of the call by which ADK asks whether a tool may run."""

_STANDARD_HINT: Final = "Please approve or reject the tool call"
"""Beginning of the hint of a confirmation for which a tool gives none: it is for programs."""

_OF_PERSONS: Final = frozenset({"adk_request_credential", "adk_request_input"})
"""Names of other calls by which ADK asks a person."""


class ADKResult(NamedTuple):
    """What an agent has answered.

    Attributes:
        text: of its last answer; with an output schema, JSON.
        events: of the run, in order.
    """

    text: str
    events: Sequence[Event]


class _Waiting(NamedTuple):
    """A call whose result an agent waits for."""

    agent: str
    call: types.FunctionCall


class ADKRun(StepsOfRun):
    """A run of an agent over one wake, or several: see `adk_run`.

    Attributes:
        wake: in which it goes on now.
        prompt: the text of the messages that it answers, recorded when it began.
        numbers: of the entries of these messages.
    """

    async def run(
        self,
        agent: BaseAgent | App,
        input: str | types.Content,
        /,
        *,
        state: HasEvents | None = None,
        stream: bool = False,
        expires_in: float | timedelta | None = None,
        steps: Mapping[str, StepOptions] | None = None,
        run_config: RunConfig | None = None,
        **options: Any,
    ) -> ADKResult:
        """Run an agent to its end, as ADK's ``Runner`` does. For a tool that needs a confirmation, a person is asked by
        a `ToolConfirmation`; for the result of a tool that runs long, the client by a `CustomToolUse`. Without an
        answer this leaves the block of the run.

        Args:
            agent: or an app of ADK. It is not changed: a copy runs, with its tools and the agents below it.
            input: the same in each wake.
            state: has the session of the agent: its events, and its state. Agents that run one after another may have
                one state. None: the agent remembers nothing.
            stream: readers see the model's text as it comes. The model has to stream.
            expires_in: seconds, or a timedelta, after which a confirmation counts as refused. None: it waits forever.
            steps: options of the steps of tools, by their names.
            run_config: see ``Runner.run_async``.
            options: others of ``Runner``, such as ``artifact_service`` and ``memory_service``.

        Raises:
            NotSerializable, PayloadTooLarge: a result cannot be recorded; the message names the tool.
            WakeMisuse: the agent asks for a credential or an input; or another one runs with this state.
            Exception: of ADK, or see `affinity.Wake.step`.
        """
        self._streams = stream
        session = self._session_of(state, agent.name)
        first = len(session.events)
        runner = self._runner(agent, steps or {}, _OneSession(session), options)
        messages = [types.UserContent(input) if isinstance(input, str) else input]
        number = self._next("run")
        self._sessions[number] = AgentSession(session, first, first)
        with put(current_number, number), self._alone(state):
            while waiting := [
                call for message in messages for call in await self._to_pause(runner, session, message, run_config)
            ]:
                self._note_answers()
                messages = await self._answers(waiting, expires_in)
        if state is not None:
            self._kept[id(state)] = state, session
        events = session.events[first:]
        return ADKResult(_answer_of(events), events)

    def _session_of(self, state: HasEvents | None, app_name: str) -> Session:
        """Return the session of a state, as an earlier run in this block has left it."""
        values: Mapping[str, Any] = {} if state is None else state.values
        events: Sequence[Event] = [] if state is None else [Event.model_validate(event) for event in state.events]
        if state is not None and (kept := self._kept.get(id(state))) is not None:
            values, events = json_values(kept[1].state), kept[1].events
        name = self.wake.conversation_id
        return Session(id=name, app_name=app_name, user_id=name, state=deepcopy(dict(values)), events=[*events])

    @contextmanager
    def _alone(self, state: HasEvents | None) -> Iterator[None]:
        if state is None:
            yield
            return
        if id(state) in self._used:
            raise WakeMisuse("an agent runs with this state: run the next one when it has ended, or with another state")
        self._used.add(id(state))
        try:
            yield
        finally:
            self._used.remove(id(state))

    def _runner(
        self,
        agent: BaseAgent | App,
        steps: Mapping[str, StepOptions],
        session_service: BaseSessionService,
        options: Mapping[str, Any],
    ) -> Runner:
        if isinstance(agent, App):
            if not isinstance(agent.root_agent, BaseAgent):
                raise WakeMisuse(f"the root of app {agent.name!r} is no agent: a workflow of ADK cannot be recorded")
            copied_root = durable_copy(agent.root_agent, self, steps)
            update = {"root_agent": copied_root, "events_compaction_config": durable_compaction(agent)}
            app = agent.model_copy(update=update)
            return Runner(app=app, session_service=session_service, **options)
        copied = durable_copy(agent, self, steps)
        return Runner(app_name=agent.name, agent=copied, session_service=session_service, **options)

    async def _to_pause(
        self, runner: Runner, session: Session, message: types.Content, run_config: RunConfig | None
    ) -> list[_Waiting]:
        """Run until the agent has answered, or waits. Return the calls whose results it waits for."""
        waiting: list[_Waiting] = []
        try:
            async for event in runner.run_async(
                user_id=session.user_id, session_id=session.id, new_message=message, run_config=run_config
            ):
                long = event.long_running_tool_ids or ()
                waiting += [_Waiting(event.author, call) for call in event.get_function_calls() if call.id in long]
        finally:
            if (fatal := self._fatal) is not None:
                self._fatal = None
                raise fatal
        return waiting

    async def _answers(self, waiting: Sequence[_Waiting], expires_in: float | timedelta | None) -> list[types.Content]:
        """Return a message for each agent that waits, since ADK gives a message to one agent alone."""
        answers: dict[int, dict[str, Any]] = {}

        async def ask(place: int, call: types.FunctionCall) -> None:
            ask_person = self._confirm if call.name == _CONFIRMATION else self._ask_for_result
            answers[place] = await ask_person(call, expires_in)

        await together([ask(place, call) for place, (_, call) in enumerate(waiting)])
        parts: dict[str, list[types.Part]] = {}
        for place, (agent, call) in enumerate(waiting):
            response = types.FunctionResponse(id=call.id, name=call.name, response=answers[place])
            parts.setdefault(agent, []).append(types.Part(function_response=response))
        return [types.Content(role="user", parts=of_agent) for of_agent in parts.values()]

    async def _confirm(self, call: types.FunctionCall, expires_in: float | timedelta | None) -> dict[str, Any]:
        asked = types.FunctionCall.model_validate((call.args or {})["originalFunctionCall"])
        hint = str((call.args or {}).get("toolConfirmation", {}).get("hint") or "")
        summary = "" if hint.startswith(_STANDARD_HINT) else hint
        request = ToolConfirmation(asked.name or "", asked.args or {}, tool_use_id=asked.id or "", summary=summary)
        answer = await self._run.require(request, expires_in=expires_in)
        if not answer.allowed:
            self._note_error(asked.id or "", "refused", answer.reason or REFUSED)
        return {"confirmed": answer.allowed}

    async def _ask_for_result(self, call: types.FunctionCall, expires_in: float | timedelta | None) -> dict[str, Any]:
        if call.name in _OF_PERSONS:
            raise WakeMisuse(f"the agent asks by {call.name!r}, which no request stands for")
        request = CustomToolUse(call.name or "", call.args or {}, tool_use_id=call.id or "")
        answer = await self._run.require(request, expires_in=expires_in)
        result = {"error": str(answer.result)} if answer.is_error else answer.result
        return result if isinstance(result, dict) else {"result": result}


class _OneSession(BaseSessionService):
    """The session of a run, in memory: each attempt makes it again."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @override
    async def create_session(self, **about: Any) -> Session:
        raise WakeMisuse("an agent in a conversation has one session, which is there")

    @override
    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        return self._session if session_id == self._session.id else None

    @override
    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        return ListSessionsResponse(sessions=[self._session.model_copy(update={"events": []})])

    @override
    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        raise WakeMisuse("the session of an agent in a conversation goes with the conversation")

    @override
    async def append_event(self, session: Session, event: Event) -> Event:
        if not event.partial:
            self._session.last_update_time = event.timestamp
        return await super().append_event(self._session, event)


def _answer_of(events: Sequence[Event]) -> str:
    """Return the text of the last answer, or of the error that the model gave in its place."""
    for event in reversed(events):
        has_answer = event.content is not None or event.error_code or event.error_message
        if event.author != "user" and has_answer and event.is_final_response():
            return text_of(event) or event.error_message or event.error_code or ""
    return ""


@asynccontextmanager
async def adk_run(
    wake: Wake,
    name: str = "agent",
    /,
    *,
    transcript: bool = True,
    inputs: Sequence[tuple[int, str]] | None = None,
) -> AsyncIterator[ADKRun]:
    """Run agents in the block, durably: what they have done is not done again, neither after a crash nor in the wake
    that goes on when a person has answered.

    ::

        async with adk_run(wake) as run:
            result = await run.run(agent, run.prompt, state=state)
            wake.append(AgentMessage(result.text))

    Args:
        wake: of the handler.
        name: of the run; see `affinity.Wake.run`.
        transcript: whether calls of tools, their results, and what the model says beside them become entries of the
            journal.
        inputs: number and text of each message that a new run answers; None: the pending messages of the wake, behind
            its last interrupt.

    Raises:
        InvalidId, WakeMisuse, SessionError: see `affinity.Wake.run`.
        SessionWriteConflict, InvalidInput: see `affinity.Wake.step`.
        NotSerializable: the state of the session has no JSON form.
    """
    async with opened(ADKRun, wake, name, inputs, transcript=transcript) as run:
        yield run
        for state, session in run._kept.values():
            state.events = [from_json(event_to_json(event)) for event in session.events]
            state.values = json_values(session.state)
