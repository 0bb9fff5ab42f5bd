"""The `affinity.provider.Backend` of ``sqlite`` URLs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from affinity.errors import InvalidOptions
from affinity.provider.backend import OpenOptions
from affinity.provider.contract import Provider
from affinity.provider.schema import Progress, SchemaReport
from affinity.provider.sqlite.provider import SqliteProvider
from affinity.provider.urls import sqlite_path


async def open(url: str, options: OpenOptions) -> Provider:
    return await SqliteProvider.open(_path(url), timeline=options.timeline)


async def migrate(url: str, progress: Progress) -> tuple[int, int]:
    return await SqliteProvider.migrate(_path(url), progress)


async def inspect_schema(url: str) -> SchemaReport:
    return await SqliteProvider.inspect_schema(_path(url))


async def change_rights(url: str, **roles: Collection[str]) -> None:
    raise InvalidOptions("SQLite has no roles: a user who may write the file may do everything")


def _path(url: str) -> Path:
    path = sqlite_path(url)
    assert path is not None, "the registry gives this module URLs of its scheme only"
    return path
