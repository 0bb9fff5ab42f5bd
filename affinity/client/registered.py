"""What workers have code for, and what that code takes: checks of what a client names and sends without the code.

Without a live worker that has orchestrations everything is accepted, and so is a name that a worker had which has ended
lately. An input is refused if it fits the code of no live worker: during a rollout, two versions are right.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from typing import Any, Final

import anyio
from pydantic_core import from_json

from affinity.batching import batches
from affinity.client.background import ClientBase
from affinity.client.calls import retry
from affinity.client.middleware import ClientMiddleware
from affinity.client.misfits import find_misfit
from affinity.errors import NotRegistered, NotSerializable, ProviderError
from affinity.explain.names import ORCHESTRATIONS, described, is_registered
from affinity.limits import check_id
from affinity.orchestration.app import version_order
from affinity.orchestration.schemas import NO_INPUT
from affinity.orchestration.typed import ExternalEvent, encode_raised, event_name
from affinity.orchestration.waits import check_event_name
from affinity.payloads import Blobs, PayloadCodec
from affinity.provider.contract import InstanceInfo, Provider, RegisteredCode
from affinity.records import frozen

logger: logging.Logger = logging.getLogger("affinity.client")

KEPT_SECONDS: Final = 30.0
"""For how long a client believes what it has read of the workers' code. A refusal reads it again."""

FRESH_SECONDS: Final = 1.0
"""The age up to which it is not read again for a refusal."""

_AGES: Final = (KEPT_SECONDS, FRESH_SECONDS)

_SHOWN: Final = 5


@frozen(kw_only=True)
class RegisteredFunction:
    """An orchestration, or a kind of conversations, for which workers have code."""

    name: str
    version: str | None  # None: the kind has none
    alive: bool  # a live worker has it; otherwise one did lately
    input: Mapping[str, Any] | None = None  # JSON Schema of the input; {"type": "null"}: it takes none; None: unknown
    needs_input: bool = False  # it has no default
    events: Mapping[str, Mapping[str, Any]] | None = None  # JSON Schemas of all its events by name; None: unknown


class _KnownCode:
    """The code of all workers, as it was read last."""

    def __init__(self) -> None:
        self._found: Sequence[RegisteredCode] = ()
        self._read_at = -inf
        self._reading = anyio.Lock()
        self.warned: set[str] = set()
        self.passed: set[str] = set()  # events that the code of an instance may wait for

    async def read(self, provider: Provider, most_age: float) -> Sequence[RegisteredCode]:
        """Read it, unless it was read lately; nothing when the database does not say it."""
        if self._is_old(most_age):
            async with self._reading:
                if self._is_old(most_age):  # another task has not read it meanwhile
                    try:
                        self._found = await provider.list_code()
                    except ProviderError:  # the call that is checked meets the same error, or succeeds
                        return ()
                    self._read_at = anyio.current_time()
                    self.passed = set()
        return self._found

    def _is_old(self, most_age: float) -> bool:
        """Whether it was read longer ago; without a live worker, one may begin any moment."""
        kept = most_age if any(one.alive for one in self._found) else min(most_age, FRESH_SECONDS)
        return anyio.current_time() - self._read_at > kept


class RegisteredCalls(ClientBase):
    """Calls about what workers have code for."""

    def __init__(
        self,
        url: str,
        *,
        codec: PayloadCodec | None = None,
        blobs: Blobs | None = None,
        middleware: Sequence[ClientMiddleware] = (),
    ) -> None:
        super().__init__(url, codec=codec, blobs=blobs, middleware=middleware)
        self._code = _KnownCode()

    async def _open_gates(self) -> None:
        """Let instances begin that have room at their gates. A guest does it; a worker does it later."""

    async def registered(self, kind: str = ORCHESTRATIONS) -> Sequence[RegisteredFunction]:
        """What workers have code for, by name and version, with JSON Schemas of what it takes: for a form, or a check.
        During a rollout a name and version may be there twice.

        Args:
            kind: "orchestrations" or "conversations".
        """
        found: dict[tuple[str, str], RegisteredFunction] = {}
        for code in sorted(await retry(self._provider.list_code), key=lambda one: not one.alive):
            for key in code.registered.get(kind, {}):
                about = code.interfaces.get(kind, {}).get(key, {})
                found.setdefault((key, repr(about)), _function(kind, key, about, alive=code.alive))
        return sorted(found.values(), key=lambda one: (one.name, version_order(one.version or "")))

    async def check_registered(self, name: str, *, version: str | None = None, kind: str = ORCHESTRATIONS) -> None:
        """Check that a worker has code for a name. This passes while no live worker has any of this kind, and if a
        worker had the name that has ended lately.

        Raises:
            NotRegistered: live workers have no code for it; the message says which names are like it.
        """
        problem = _missing(await self._code.read(self._provider, FRESH_SECONDS), kind, name, version)
        if problem is not None:
            raise NotRegistered(problem)

    async def check_event(self, kind: str, name: str, event: str, data: Any) -> None:
        """Check the data of an event for what has this name, such as a kind of conversations. An event passes that no
        live worker knows.

        Raises:
            NotSerializable: no live worker takes the data.
        """
        codes = await self._live(FRESH_SECONDS)
        schemas = [one.interfaces.get(kind, {}).get(name, {}).get("events", {}).get(event, {}) for one in codes]
        problems = [find_misfit(schema, data) for schema in schemas]
        if problems and None not in problems:
            raise _refusal(f"event {event!r}", problems[0])

    async def check_awaited(self, instance_id: str, event: str) -> None:
        """Check that the code of an instance waits for events of this name. This passes if the source of the code
        leaves open which names it waits for, while no live worker has the code, and if there is no such instance.

        Raises:
            NotRegistered: no live worker has code that waits for it.
            InvalidId: the id or the name is refused.
        """
        check_event_name(event)
        (info,) = await self._look_up([check_id(instance_id, "instance id")])
        if info is None:
            return
        if (problem := _unread(await self._live(FRESH_SECONDS), info, event)) is not None:
            raise NotRegistered(problem)

    async def _check_start(self, name: str, version: str | None, text: str, *, is_given: bool = True) -> None:
        """Check a start by name: warn once if no live worker has the name, refuse an input that none takes. One that
        the caller has not given, a due time, is dropped by code that takes no input.

        Raises:
            NotSerializable: such an input.
        """
        key, problem = _key(name, version), None
        for most_age in _AGES if key not in self._code.warned else ():
            problem = _missing(await self._code.read(self._provider, most_age), ORCHESTRATIONS, name, version)
            if problem is None:
                break
        if problem is not None:
            self._code.warned.add(key)
            logger.warning("%s It is started all the same, and waits for one.", problem)
        await self._check_value(name, version, f"input of orchestration {name!r}", text, None, is_given=is_given)

    async def _check_events(self, events: Iterable[ExternalEvent]) -> None:
        """Check events that have no type here, where the code of their instances is known: warn once of a name for
        which it does not wait, refuse data that it does not take.

        Raises:
            NotSerializable: such data.
        """
        if not (untyped := [one for one in events if _is_untyped(one)]):
            return
        live = await self._live(KEPT_SECONDS)
        awaited, typed = _event_names(live)
        admitted = (self._code.passed | awaited) - typed
        wanted = [one for one in untyped if live and event_name(one.name) not in admitted]
        ids = list(dict.fromkeys(check_id(one.instance_id, "instance id") for one in wanted))
        found = {info.instance_id: info for batch in batches(ids) for info in await self._look_up(batch) if info}
        for event in wanted:
            if (info := found.get(event.instance_id)) is not None:
                name, text = encode_raised(event.name, event.data)
                self._warn_unread(_unread(live, info, name), name)
                what = f"data of event {name!r} for instance {info.instance_id!r}"
                await self._check_value(info.name, info.version, what, text, name)

    def _warn_unread(self, problem: str | None, event: str) -> None:
        """Log once that no wait reads an event."""
        if problem is None:
            self._code.passed.add(event)
        elif problem not in self._code.warned:
            self._code.warned.add(problem)
            logger.warning("%s It is sent all the same, and stays unread.", problem)

    async def _live(self, most_age: float) -> Sequence[RegisteredCode]:
        return [code for code in await self._code.read(self._provider, most_age) if code.alive]

    async def _check_value(
        self, name: str, version: str | None, what: str, text: str, event: str | None, *, is_given: bool = True
    ) -> None:
        problem = None
        for most_age in _AGES:
            problem = _misfit(await self._live(most_age), name, version, text, event, is_given=is_given)
            if problem is None:
                return
        raise _refusal(what, problem)


def _function(kind: str, key: str, about: Mapping[str, Any], *, alive: bool) -> RegisteredFunction:
    name, _, version = key.partition("@") if kind == ORCHESTRATIONS else (key, "", "")
    return RegisteredFunction(
        name=name,
        version=version or None,
        alive=alive,
        input=about.get("input"),
        needs_input=about.get("required", False),
        events=about.get("events"),
    )


def _key(name: str, version: str | None) -> str:
    return name if version is None else f"{name}@{version}"


def _missing(codes: Sequence[RegisteredCode], kind: str, name: str, version: str | None) -> str | None:
    """Says that no worker has code for a name, with the names that are like it; None: one has, or no live worker
    has code for any of this kind.
    """
    key = _key(name, version)
    keys = {each for one in codes if one.alive for each in one.registered.get(kind, {})}
    if not keys or any(is_registered(one.registered, kind, key) for one in codes):
        return None
    names = sorted({each.partition("@")[0] for each in keys} if kind == ORCHESTRATIONS else keys)
    text = f"no live worker registers the {described(kind, key)}"
    if name in names:
        versions = {each.partition("@")[2] for each in keys if each.partition("@")[0] == name}
        return f"{text}: they have {_listed(sorted(versions, key=version_order))}."
    return f"{text}: {_hint(name, names)}"


def _hint(name: str, names: Sequence[str]) -> str:
    like = get_close_matches(name, names, 1)
    return f"did you mean {like[0]!r}?" if like else f"they have {_listed(names)}."


def _refusal(what: str, problem: str | None) -> NotSerializable:
    return NotSerializable(f"{what}: {problem}. No live worker takes it; force=True (--force) sends it all the same")


def _is_untyped(event: ExternalEvent) -> bool:
    return isinstance(event.name, str) or event.name.event.data_codec.declared is Any


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more if names else "none"


def _event_names(codes: Iterable[RegisteredCode]) -> tuple[set[str], set[str]]:
    """The events that some code waits for, and those for which some has a schema."""
    interfaces = [about for code in codes for about in code.interfaces.get(ORCHESTRATIONS, {}).values()]
    events = [pair for about in interfaces for pair in about.get("events", {}).items()]
    return {name for name, _ in events}, {name for name, schema in events if schema}


def _unread(codes: Iterable[RegisteredCode], info: InstanceInfo, event: str) -> str | None:
    """Says that the code of an instance never waits for an event; None: some does, or may."""
    known = [about.get("events") for about in _interfaces(codes, info.name, info.version)]
    if not known or any(events is None or event in events for events in known):
        return None
    names = sorted({name for events in known for name in events or ()})
    return f"orchestration {info.name!r} waits for no event {event!r}: {_hint(event, names)}"


def _interfaces(codes: Iterable[RegisteredCode], name: str, version: str | None) -> Iterator[Mapping[str, Any]]:
    """What code of a name takes, in this version or the latest; empty where it has said nothing of it."""
    for code in codes:
        key = _latest(code, name) if version is None else _key(name, version)
        if key is not None and key in code.registered.get(ORCHESTRATIONS, {}):
            yield code.interfaces.get(ORCHESTRATIONS, {}).get(key, {})


def _misfit(
    codes: Iterable[RegisteredCode], name: str, version: str | None, text: str, event: str | None, *, is_given: bool
) -> str | None:
    """What all code of a name refuses in a value; None: some takes it, or some may."""
    problem = None
    for about in _interfaces(codes, name, version):
        schema = about.get("input") if event is None else (about.get("events") or {}).get(event)
        is_optional = event is None and not about.get("required")
        if schema is None or (is_optional and (text == "null" or (schema == NO_INPUT and not is_given))):
            return None
        problem = find_misfit(schema, from_json(text))
        if problem is None:
            return None
    return problem


def _latest(code: RegisteredCode, name: str) -> str | None:
    """The key of the latest version of a name: that one is started."""
    keys = [each for each in code.registered.get(ORCHESTRATIONS, {}) if each.partition("@")[0] == name]
    return max(keys, key=lambda each: version_order(each.partition("@")[2]), default=None)
