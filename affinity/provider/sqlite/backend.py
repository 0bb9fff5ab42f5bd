"""The `affinity.provider.Backend` of ``sqlite`` URLs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import anyio.to_thread

from affinity.errors import InvalidOptions
from affinity.provider.backend import OpenOptions
from affinity.provider.checks import CheckResult, log_warnings
from affinity.provider.contract import Provider
from affinity.provider.schema import Progress, SchemaReport
from affinity.provider.sqlite.checks import check_file
from affinity.provider.sqlite.provider import SqliteProvider
from affinity.provider.urls import sqlite_path


async def open(url: str, options: OpenOptions) -> Provider:
    provider = await SqliteProvider.open(_path(url), timeline=options.timeline)
    if options.log_warnings:
        log_warnings("SQLite", await check(url))
    return provider


async def migrate(url: str, progress: Progress) -> tuple[int, int]:
    return await SqliteProvider.migrate(_path(url), progress)


async def inspect_schema(url: str) -> SchemaReport:
    return await SqliteProvider.inspect_schema(_path(url))


async def check(url: str) -> Sequence[CheckResult]:
    return await anyio.to_thread.run_sync(check_file, _path(url))


async def change_rights(url: str, **roles: Collection[str]) -> None:
    raise InvalidOptions("SQLite has no roles: a user who may write the file may do everything")


def _path(url: str) -> Path:
    path = sqlite_path(url)
    assert path is not None, "the registry gives this module URLs of its scheme only"
    return path
