"""What forms do. Each action is a verb of the client; the log has who did what, with what result."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from affinity.client import Client
from affinity.console.access import Access, Action
from affinity.console.pages.base import required
from affinity.console.pages.conversations import handle_of
from affinity.console.requests import Refused
from affinity.errors import AffinityError, InvalidInput
from affinity.records import frozen

logger: logging.Logger = logging.getLogger("affinity.console")

Form: TypeAlias = Mapping[str, str]


@frozen()
class Verb:
    """One action."""

    needs: Action
    target: str  # the field that names what it is done to
    run: Callable[[Client, Form], Awaitable[object]]  # returns the outcome
    confirmed: bool = False  # the form repeats the target in the field "confirm"


async def do(client: Client, name: str, form: Form, access: Access) -> None:
    """Do what a form asks for.

    Raises:
        Refused: there is no such action, the user may not, or the name was not repeated.
        AffinityError: the client refuses.
    """
    verb = VERBS.get(name)
    if verb is None:
        raise Refused(404, "there is no such action")
    if not access.may(verb.needs):
        raise Refused(403, f"you may not do this: it needs the action {verb.needs!r}")
    target = required(form, verb.target)
    if verb.confirmed and form.get("confirm") != target:
        raise Refused(400, f"type the name {target!r} to confirm")
    try:
        outcome = await verb.run(client, form)
    except AffinityError as error:
        logger.warning("%r: %s %r was refused: %r", access.user, name, target, error)
        raise
    logger.info("%r: %s %r: %s", access.user, name, target, outcome)


async def _answer(client: Client, form: Form) -> int:
    conversation_id = form["conversation"]
    found = await client.get_conversation(conversation_id)
    answer: dict[str, Any] = {"reason": form.get("reason", "")}
    match form.get("answer"):
        case "allow" | "refuse" as word:
            answer["allowed"] = word == "allow"
        case "result" | "error" as word:
            answer = {"result": _json_of(form.get("result", "")), "is_error": word == "error"}
        case _:
            raise InvalidInput("answer with allow, refuse, result or error")
    talk = handle_of(client, conversation_id, found.kind)
    return await talk.answer(required(form, "request"), **answer)


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput('the result is no JSON: a text stands in quotes, as "done"') from None


async def _release(client: Client, form: Form) -> str:
    return _done(await client.release_session(form["session"]), "released")


async def _move(client: Client, form: Form) -> str:
    return _done(await client.move_session(form["session"], required(form, "to")), "planned", "moved")


def _done(outcome: str, *good: str) -> str:
    if outcome not in good:
        raise Refused(409, f"nothing was changed: {outcome.replace('_', ' ')}")
    return outcome


VERBS: Final[Mapping[str, Verb]] = {
    "answer": Verb("answer", "conversation", _answer),
    "cancel": Verb("cancel", "instance", lambda c, f: c.cancel(f["instance"], f.get("reason", "")), confirmed=True),
    "resume": Verb("resume", "instance", lambda c, f: c.resume(f["instance"])),
    "release": Verb("release", "session", _release),
    "move": Verb("move", "session", _move),
    "drain": Verb("drain", "worker", lambda c, f: c.drain_worker(f["worker"]), confirmed=True),
    "end-drain": Verb("drain", "worker", lambda c, f: c.resume_worker(f["worker"])),
}
"""By name, as in the address of a form."""
