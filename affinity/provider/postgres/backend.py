"""The `affinity.provider.Backend` of ``postgresql`` and ``postgres`` URLs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from affinity.provider.backend import OpenOptions
from affinity.provider.checks import CheckResult
from affinity.provider.contract import Provider
from affinity.provider.postgres.checks import check_target
from affinity.provider.postgres.driver.target import Target
from affinity.provider.postgres.provider import PostgresProvider
from affinity.provider.schema import Progress, SchemaReport


async def open(url: str, options: OpenOptions) -> Provider:
    return await PostgresProvider.open(
        url,
        application_name=options.application_name,
        timeline=options.timeline,
        one_connection=options.one_connection,
        as_client=options.as_client,
        probe_after=options.probe_after,
        log_warnings=options.log_warnings,
    )


async def migrate(url: str, progress: Progress) -> tuple[int, int]:
    return await PostgresProvider.migrate(url, progress)


async def inspect_schema(url: str) -> SchemaReport:
    return await PostgresProvider.inspect_schema(url)


async def check(url: str) -> Sequence[CheckResult]:
    return await check_target(Target.parse(url))


async def change_rights(
    url: str,
    *,
    clients: Collection[str],
    workers: Collection[str],
    scalers: Collection[str],
    readers: Collection[str],
    revoke: Collection[str],
) -> None:
    roles = {"clients": clients, "workers": workers, "scalers": scalers, "readers": readers}
    await PostgresProvider.change_rights(url, **roles, revoke=revoke)
