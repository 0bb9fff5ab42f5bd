"""What forms do. Each action is a verb of the client; the log has who did what, with what result."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final, TypeAlias

from affinity.audit import acting_where_kept, record_refusal
from affinity.composed.client import Client
from affinity.console.access import Access, Action
from affinity.console.pages.base import given, json_of, number, required
from affinity.console.pages.instances import FILTERS, TOGETHER, matching
from affinity.console.pages.starts import start_input
from affinity.console.rendering import query
from affinity.console.requests import Refused
from affinity.errors import AffinityError, InstanceFinished, InvalidInput, UnknownInstance
from affinity.guests import modules
from affinity.redaction import redacted

logger: logging.Logger = logging.getLogger("affinity.console")

Form: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Verb:
    """One action."""

    needs: Action
    target: str  # the field that names what it is done to
    run: Callable[[Client, Form], Awaitable[object]]  # returns the outcome
    confirmed: bool = False  # the form repeats the target in the field "confirm"
    then: Callable[[Form], str] | None = None  # the page that is shown then; None: the one with the form
    leads: bool = False  # to the instance whose id is the outcome


NO_VERBS: Final[Mapping[str, Verb]] = MappingProxyType({})


async def do(client: Client, name: str, form: Form, access: Access, own_verbs: Mapping[str, Verb] = NO_VERBS) -> str:
    """Do what a form asks for: one of `verbs`, or of ``own_verbs``, which only this console has. Returns the address of
    the page that is shown then, below the console's prefix.

    Raises:
        Refused: there is no such action, the user may not, or the name was not repeated.
        AffinityError: the client refuses.
    """
    verb = own_verbs.get(name) or verbs().get(name)
    if verb is None:
        raise Refused(404, "there is no such action")
    with acting_where_kept(client, access.user, source="console"):
        return await _do(client, name, verb, form, access)


async def _do(client: Client, name: str, verb: Verb, form: Form, access: Access) -> str:
    if not access.may(verb.needs):
        await record_refusal(name, verb.target, form.get(verb.target, ""), "not allowed")
        raise Refused(403, f"you may not do this: it needs the action {verb.needs!r}")
    target = required(form, verb.target)
    if verb.confirmed and form.get("confirm") != target:
        raise Refused(400, f"type the name {target!r} to confirm")
    try:
        outcome = await verb.run(client, form)
    except AffinityError as error:
        logger.warning("%r: %s %r was refused: %r", access.user, name, target, redacted(error))
        await record_refusal(name, verb.target, target, error)
        raise
    logger.info("%r: %s %r: %s", access.user, name, target, outcome)
    if verb.leads:
        return f"/instance?{query(id=outcome)}"
    return form.get("back", "/") if verb.then is None else verb.then(form)


async def _raise(client: Client, form: Form) -> None:
    await client.raise_event(form["instance"], required(form, "name"), json_of(form, "data"))


async def _cancel_matching(client: Client, form: Form) -> str:
    ended = 0
    found = await _found(client, form, "cancel")
    for instance_id in found:
        try:
            await client.cancel(instance_id)
        except (InstanceFinished, UnknownInstance):  # meanwhile
            ended += 1
    return f"{len(found) - ended} of {len(found)}"


async def _resume_matching(client: Client, form: Form) -> str:
    found = await _found(client, form, "resume")
    outcomes = await client.resume_many(found)
    return f"{outcomes.count('resumed')} of {len(found)}"


async def _start(client: Client, form: Form) -> str:
    handle = await client.start(
        form["name"], start_input(form), instance_id=form.get("id") or None, version=form.get("version") or None
    )
    return handle.instance_id


async def _rerun(client: Client, form: Form) -> str:
    given = {"input": json_of(form, "input")} if form.get("input", "").strip() else {}
    return (await client.rerun(form["instance"], new_id=new_id(form), **given)).instance_id


async def _rerun_matching(client: Client, form: Form) -> str:
    refused = 0
    found = await _found(client, form, "rerun")
    for instance_id in found:
        try:
            await client.rerun(instance_id, new_id=uuid.uuid4().hex)
        except (InvalidInput, UnknownInstance) as error:
            refused += 1
            logger.warning("run %r again: %r", instance_id, redacted(error))
    return f"{len(found) - refused} of {len(found)}"


def new_id(form: Form) -> str:
    """Return the id of the new instance, which the audit log has: the one of the form, or a random one."""
    return form.get("id") or uuid.uuid4().hex


async def _found(client: Client, form: Form, name: str) -> Sequence[str]:
    """The instances that fit now.

    Raises:
        Refused: they are more than the user has agreed to.
    """
    found = await matching(client, form, TOGETHER[name])
    if len(found) > (number(form, "count") or 0):
        raise Refused(409, f"{len(found)} instances fit now: count them again")
    return found


def _listed(form: Form) -> str:
    return f"/instances?{query(**given(form, *FILTERS))}"


async def _reset(client: Client, form: Form) -> int:
    event = number(form, "event")
    if event is None:
        raise InvalidInput("name the last event that counts")
    if seen := form.get("seen"):
        now = await client.status(form["instance"])
        if seen != f"{now.execution_id}/{now.event_count}":
            raise Refused(409, "the instance has gone on since the preview: look at it again")
    return await client.reset(form["instance"], to_event=event)


async def _delete_record(client: Client, form: Form) -> int:
    return len(await client.session_manager.delete(form["session"]))


async def _release(client: Client, form: Form) -> str:
    return _done(await client.release_session(form["session"]), "released")


async def _move(client: Client, form: Form) -> str:
    return _done(await client.move_session(form["session"], required(form, "to")), "planned", "moved")


def _done(outcome: str, *good: str) -> str:
    if outcome not in good:
        raise Refused(409, f"nothing was changed: {outcome.replace('_', ' ')}")
    return outcome


_VERBS: Final[Mapping[str, Verb]] = {
    "cancel": Verb("cancel", "instance", lambda c, f: c.cancel(f["instance"], f.get("reason", "")), confirmed=True),
    "delete": Verb(
        "delete", "instance", lambda c, f: c.delete(f["instance"]), confirmed=True, then=lambda f: "/instances"
    ),
    "delete-record": Verb("delete", "session", _delete_record, confirmed=True, then=lambda f: "/sessions"),
    "cancel-matching": Verb("cancel", "count", _cancel_matching, confirmed=True, then=_listed),
    "resume-matching": Verb("resume", "count", _resume_matching, confirmed=True, then=_listed),
    "rerun-matching": Verb("start", "count", _rerun_matching, confirmed=True, then=_listed),
    "start": Verb("start", "name", _start, leads=True),
    "rerun": Verb("start", "instance", _rerun, leads=True),
    "raise": Verb("raise", "instance", _raise),
    "reset": Verb("reset", "instance", _reset, confirmed=True),
    "resume": Verb("resume", "instance", lambda c, f: c.resume(f["instance"])),
    "rebalance": Verb("move", "what", lambda c, f: c.suspend_rebalancing(suspended=f["what"] == "suspend")),
    "release": Verb("release", "session", _release),
    "move": Verb("move", "session", _move),
    "drain": Verb("drain", "worker", lambda c, f: c.drain_worker(f["worker"]), confirmed=True),
    "end-drain": Verb("drain", "worker", lambda c, f: c.resume_worker(f["worker"])),
}


@cache
def verbs() -> Mapping[str, Verb]:
    """The actions by name, as in the address of a form. A guest's module ``page`` has its own, named ``VERBS``."""
    found = dict(_VERBS)
    for module in modules("page").values():
        found |= module.VERBS
    return found
