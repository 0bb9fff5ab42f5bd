"""The actions of the forms on the pages of conversations."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from affinity.console.actions import Form, Verb
from affinity.console.pages.base import json_of, number, required
from affinity.console.rendering import query
from affinity.conversation import ConversationHandle, UserMessage
from affinity.conversation.client import ConversationCalls
from affinity.conversation.page.reads import handle_of
from affinity.errors import InvalidInput, WaitTimeout, WakeFailed

ASK_SECONDS: Final = 30.0
"""The time that a form waits for the reply to its message."""


async def _talk(client: ConversationCalls, form: Form) -> ConversationHandle:
    found = await client.get_conversation(form["conversation"])
    return handle_of(client, found.conversation_id, found.kind)


async def _answer(client: ConversationCalls, form: Form) -> int:
    talk = await _talk(client, form)
    answer: dict[str, Any] = {"reason": form.get("reason", "")}
    match form.get("answer"):
        case "allow" | "refuse" as word:
            if word == "allow" and not form.get("sure") and await _is_dangerous(talk, form.get("request", "")):
                raise InvalidInput(
                    "this request is marked as dangerous: tick the box that you have read it, then allow it"
                )
            answer["allowed"] = word == "allow"
        case "result" | "error" as word:
            answer = {"result": json_of(form, "result"), "is_error": word == "error"}
        case _:
            raise InvalidInput("answer with allow, refuse, result or error")
    return await talk.answer(required(form, "request"), **answer)


async def _is_dangerous(talk: ConversationHandle, request_id: str) -> bool:
    waiting = await talk.requests()
    return any(getattr(each.event, "dangerous", False) for each in waiting if each.request_id == request_id)


async def _send(client: ConversationCalls, form: Form) -> int:
    return await (await _talk(client, form)).send(UserMessage(required(form, "text")))


async def _ask(client: ConversationCalls, form: Form) -> str:
    """Send, and wait some time for the reply, which the next page shows."""
    with suppress(WaitTimeout, WakeFailed):
        await (await _talk(client, form)).ask(UserMessage(required(form, "text")), timeout=ASK_SECONDS)
        return "replied"
    return "sent, without a reply yet"


async def _interrupt(client: ConversationCalls, form: Form) -> int:
    cancel = bool(form.get("cancel"))
    return await (await _talk(client, form)).interrupt(cancel_running=cancel, reason=form.get("reason", ""))


async def _try_again(client: ConversationCalls, form: Form) -> bool:
    return await (await _talk(client, form)).resume()


async def _terminate(client: ConversationCalls, form: Form) -> None:
    await (await _talk(client, form)).terminate(reason=form.get("reason", ""))


async def _fork(client: ConversationCalls, form: Form) -> str:
    made = await (await _talk(client, form)).fork(required(form, "new"), at=number(form, "at"))
    return made.conversation_id


def _forked(form: Form) -> str:
    return f"/conversation?{query(id=form['new'])}"


VERBS: Final[Mapping[str, Verb]] = {
    "answer": Verb("answer", "conversation", _answer),
    "ask": Verb("converse", "conversation", _ask),
    "fork": Verb("converse", "conversation", _fork, then=_forked),
    "interrupt": Verb("converse", "conversation", _interrupt),
    "send": Verb("converse", "conversation", _send),
    "terminate": Verb("cancel", "conversation", _terminate, confirmed=True),
    "try-again": Verb("converse", "conversation", _try_again),
}
