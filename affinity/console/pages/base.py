"""The parts that all pages share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import anyio

from affinity.composed.client import Client
from affinity.console.payloads import Payloads
from affinity.errors import InvalidInput

SUFFIX: Final = ".conversation"
"""Ending of the names of the orchestrations of conversations: see `InstanceConditions.name_suffix`."""

ROWS: Final = 50
"""Rows on a page of a list."""

Word = TypeVar("Word", bound=str)

Query: TypeAlias = Mapping[str, str]
Load: TypeAlias = Callable[[Client, Query, Payloads], Awaitable[dict[str, Any]]]


class Pieces(Protocol):
    """What a page sends to one browser between two reads."""

    def during(self, seconds: float) -> AsyncIterator[str]:
        """Return the server-sent events that come in this time; it takes all of it."""
        ...


class Silence:
    """Sends nothing."""

    async def during(self, seconds: float) -> AsyncIterator[str]:
        """Wait."""
        await anyio.sleep(seconds)
        nothing: tuple[str, ...] = ()
        for event in nothing:
            yield event


class Live(Protocol):
    """The source of what a page sends between two reads, for all browsers that look."""

    def follow(self, client: Client, query: Query) -> AbstractAsyncContextManager[Pieces]:
        """Follow what this address names, within the block."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for a person on a page: the number in the menu."""

    number: int
    title: str  # a sentence
    most: int  # where the count stops

    @property
    def is_cut(self) -> bool:
        """Whether the count has stopped."""
        return self.number >= self.most

    @property
    def text(self) -> str:
        """The number, with a plus sign where the count has stopped."""
        return f"{self.number}+" if self.is_cut else str(self.number)


CountWaiting: TypeAlias = Callable[[Client], Awaitable[Waiting]]


@dataclass(frozen=True, slots=True)
class Card:
    """What the overview shows of a guest."""

    load: Callable[[Client], Awaitable[Mapping[str, Any] | None]]
    """None: there is nothing to show."""
    template: str
    """Of the guest; ``card`` in it is what ``load`` has returned."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the console."""

    path: str
    title: str
    template: str  # of the console, or of a guest: ``schedules/page.html``
    load: Load
    is_in_menu: bool = False  # of a guest's page
    is_last: bool = False  # in the menu, behind other guests
    live: Callable[[Callable[[], Payloads]], Live] | None = None  # is given how to show values
    card: Card | None = None
    waiting: CountWaiting | None = None  # of a page in the menu; bounded, since each page shows it
    several: Collection[str] = ()  # names that its address may have more than once


def required(query: Query, name: str) -> str:
    """A value of the URL.

    Raises:
        InvalidInput: it is missing.
    """
    if not query.get(name):
        raise InvalidInput(f"the address has no {name!r}")
    return query[name]


def number(query: Query, name: str) -> int | None:
    """A number of the URL; None: it is missing.

    Raises:
        InvalidInput: it is none.
    """
    text = query.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):  # noqa: PLR2004 -- digits of 64 bits
        raise InvalidInput(f"{name} is no number")
    return int(text)


def time_of(query: Query, name: str) -> datetime | None:
    """A time of the URL, in UTC unless it has a zone; None: it is missing.

    Raises:
        InvalidInput: it is none.
    """
    text = query.get(name)
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{name} is no time: write 2026-01-31T12:00, in UTC") from None


def label_of(text: str) -> tuple[str, str]:
    """Return the label in ``KEY=VALUE``, without the spaces around it.

    Raises:
        InvalidInput: it is no label.
    """
    key, equals, value = text.strip().partition("=")
    if not key or not equals or not value:
        raise InvalidInput(f"{text.strip()!r:.80} is not a label: give KEY=VALUE")
    return key, value


def name_conditions(*, is_conversation: bool) -> dict[str, Any]:
    """Return the conditions of `Client.list_instances` for the instances of conversations, or for all others."""
    return {"name_suffix": SUFFIX} if is_conversation else {"without_suffix": [SUFFIX]}


def list_of(query: Query, name: str, allowed: Collection[str]) -> list[str]:
    """The values of the URL that stand under one name, apart or with commas between them.

    Raises:
        InvalidInput: there is no such value.
    """
    found = [part for part in query.get(name, "").split(",") if part]
    if unknown := next((part for part in found if part not in allowed), None):
        raise InvalidInput(f"there is no {name} {unknown!r:.40}: there are {', '.join(allowed)}")
    return found


def single(query: Query, name: str, allowed: Collection[Word]) -> Word:
    """A value of the URL that is one of these.

    Raises:
        InvalidInput: it is none of them.
    """
    found = next((word for word in allowed if word == query.get(name)), None)
    if found is None:
        raise InvalidInput(f"there is no {name} {query.get(name)!r:.40}: there are {', '.join(allowed)}")
    return found


def json_of(form: Query, name: str) -> Any:
    """Return the value of a field that has JSON.

    Raises:
        InvalidInput: it has none.
    """
    try:
        return json.loads(form.get(name, ""))
    except (ValueError, RecursionError):
        raise InvalidInput(f'{name} is no JSON: a text stands in quotes, as "done"') from None


def given(query: Query, *names: str) -> dict[str, str]:
    """The values of these names that the URL has."""
    return {name: query[name] for name in names if query.get(name)}
