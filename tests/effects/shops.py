"""Applications with a table of payments, on each library and database that `affinity.once` knows."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import aiosqlite
import django
import django.conf
import psycopg
import sqlalchemy
from pydantic import BaseModel
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import affinity
from affinity.effects import OnceBlock, SyncOnceBlock, create_table
from affinity.provider.urls import sqlite_path

PAYMENTS: Final = "CREATE TABLE payments (id integer, reference text NOT NULL)"


class Receipt(BaseModel):
    """The result of a payment."""

    number: int


@dataclass
class Connected:
    """A connection of a kind, with what tests do on it."""

    raw: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


async def done(value: Any) -> Any:
    """Return what a library returned, or what its awaitable gives."""
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def entered(block: OnceBlock[Any] | SyncOnceBlock[Any]) -> AsyncIterator[Any]:
    """Enter a block of either kind."""
    if isinstance(block, OnceBlock):
        async with block as step:
            yield step
    else:
        with block as step:
            yield step


@dataclass(frozen=True)
class Shop:
    """A database with payments, and one kind of connection to it."""

    kind: str
    url: str

    @asynccontextmanager
    async def connect(self, *, raw: Any = None) -> AsyncIterator[Connected]:
        """Open a connection."""
        async with _KINDS[self.kind](self.url) as connected:
            yield connected

    async def pay(
        self,
        ctx: affinity.ActivityContext,
        reference: str = "a",
        *,
        number: int = 1,
        within: Callable[[], Awaitable[None]] | None = None,
        **options: Any,
    ) -> Receipt:
        """Pay as an activity does: on a connection of its own, in a transaction of the block."""
        async with self.connect() as connected:
            return await pay_on(connected, ctx, reference, number=number, within=within, **options)

    def paid(self) -> list[str]:
        """The references of the payments that have committed."""
        with self.plain() as run:
            return [str(row[0]) for row in run("SELECT reference FROM payments ORDER BY reference")]

    def rows(self) -> list[tuple[Any, ...]]:
        """Name, attempt and result of the rows of ``affinity_once``."""
        with self.plain() as run:
            return [*map(tuple, run("SELECT name, attempt, result FROM affinity_once ORDER BY name"))]

    @contextmanager
    def plain(self) -> Iterator[Callable[[str], Sequence[tuple[Any, ...]]]]:
        """A plain connection, beside the library's."""
        if (path := sqlite_path(self.url)) is not None:
            with closing(sqlite3.connect(path, isolation_level=None)) as file:
                yield lambda text: file.execute(text).fetchall()
        else:
            with psycopg.connect(self.url, autocommit=True) as connection:

                def run(text: str) -> Sequence[tuple[Any, ...]]:
                    cursor = connection.execute(text.encode())
                    return cursor.fetchall() if cursor.description else []

                yield run


async def pay_on(
    connected: Connected,
    ctx: affinity.ActivityContext,
    reference: str = "a",
    *,
    number: int = 1,
    within: Callable[[], Awaitable[None]] | None = None,
    **options: Any,
) -> Receipt:
    """Pay in a block on this connection."""
    async with entered(affinity.once(ctx, connected.raw, Receipt, **options)) as step:
        if not step.is_recorded:
            await done(connected.execute(f"INSERT INTO payments (reference) VALUES ('{reference}')"))
            if within is not None:
                await within()
            step.result = Receipt(number=number)
    assert isinstance(step.result, Receipt)
    return step.result


def open_shop(kind: str, url: str) -> Shop:
    """Make the tables of a shop."""
    create_table(url)
    shop = Shop(kind, url)
    with shop.plain() as run:
        run("DROP TABLE IF EXISTS payments")
        run(PAYMENTS)
    return shop


def context(attempt: int = 1, **fields: Any) -> affinity.ActivityContext:
    """A context of one activity, whose attempts have the same key."""
    same: Mapping[str, Any] = {
        "instance_id": "order-7",
        "instance_generation": "g",
        "execution_id": 1,
        "activity_id": 2,
        "name": "pay",
        "orchestration_name": "order",
        "orchestration_version": "1",
        "worker_id": "w",
    }
    return affinity.ActivityContext(**{**same, **fields}, attempt=attempt)


# --- kinds ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Connected]:
    with psycopg.connect(url) as raw:
        yield Connected(raw, lambda text: raw.execute(text.encode()), raw.commit, raw.rollback)
        raw.rollback()  # as a block that has begun the transaction leaves nothing to commit


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Connected]:
    async with await psycopg.AsyncConnection.connect(url) as raw:
        yield Connected(raw, lambda text: raw.execute(text.encode()), raw.commit, raw.rollback)
        await raw.rollback()


@asynccontextmanager
async def _sqlite3(url: str) -> AsyncIterator[Connected]:
    with closing(sqlite3.connect(str(sqlite_path(url)), timeout=0.1)) as raw:
        raw.row_factory = sqlite3.Row  # which is not how the block reads
        yield Connected(raw, raw.execute, raw.commit, raw.rollback)


@asynccontextmanager
async def _aiosqlite(url: str) -> AsyncIterator[Connected]:
    async with aiosqlite.connect(str(sqlite_path(url)), timeout=0.1) as raw:
        yield Connected(raw, raw.execute, raw.commit, raw.rollback)


def _alchemy_url(url: str, *, is_async: bool = False) -> str:
    if url.startswith("sqlite:"):
        return url.replace("sqlite:", "sqlite+aiosqlite:", 1) if is_async else url
    return url.replace("postgresql:", "postgresql+psycopg:", 1)


def _alchemy_kind(connect: Callable[[Any], Any], create: Callable[..., Any]) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Connected]:
        is_async = create is create_async_engine
        engine = create(_alchemy_url(url, is_async=is_async))
        try:
            target = connect(engine)
            manager = target if hasattr(target, "__aenter__") else _as_async(target)
            async with manager as raw:
                yield Connected(raw, lambda text: raw.execute(sqlalchemy.text(text)), raw.commit, raw.rollback)
        finally:
            await done(engine.dispose())

    return opened


@asynccontextmanager
async def _as_async(manager: Any) -> AsyncIterator[Any]:
    with manager as value:
        yield value


@asynccontextmanager
async def _django(url: str) -> AsyncIterator[Connected]:
    from django.db import connections, transaction

    set_up_django()
    connections.databases["shop"] = {**connections.databases["default"], **django_database(url)}
    raw = connections["shop"]

    def execute(text: str) -> None:
        with raw.cursor() as cursor:
            cursor.execute(text)

    try:
        yield Connected(raw, execute, partial_commit(transaction), lambda: None)
    finally:
        raw.close()
        del connections["shop"]


def partial_commit(transaction: Any) -> Callable[[], Any]:
    """In Django a block commits; nothing is left to do."""
    return nullcontext


def set_up_django() -> None:
    """Settings without anything."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, USE_TZ=True
        )
        django.setup()


def django_database(url: str) -> dict[str, Any]:
    """The settings of one database."""
    if (path := sqlite_path(url)) is not None:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {"timeout": 0.1}}
    found = psycopg.conninfo.conninfo_to_dict(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": found["dbname"],
        "USER": found.get("user", ""),
        "PASSWORD": found.get("password", ""),
        "HOST": found.get("host", ""),
        "PORT": found.get("port", ""),
    }


_KINDS: Final[Mapping[str, Callable[[str], Any]]] = {
    "psycopg": _psycopg,
    "psycopg_async": _psycopg_async,
    "sqlite3": _sqlite3,
    "aiosqlite": _aiosqlite,
    "alchemy": _alchemy_kind(lambda engine: engine.connect(), sqlalchemy.create_engine),
    "alchemy_session": _alchemy_kind(orm.Session, sqlalchemy.create_engine),
    "alchemy_async": _alchemy_kind(lambda engine: engine.connect(), create_async_engine),
    "alchemy_async_session": _alchemy_kind(AsyncSession, create_async_engine),
    "django": _django,
}

KINDS: Final = [
    *(f"{kind}-new" for kind in _KINDS if "sqlite" not in kind),
    *(f"{kind}-sqlite" for kind in _KINDS if "psycopg" not in kind),
]
"""Each kind of connection, with the databases that it is for."""
