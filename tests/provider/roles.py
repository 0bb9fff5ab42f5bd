"""Roles of PostgreSQL with few rights, and a provider object whose verbs run as the role that is to do them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, LiteralString, cast

import psycopg
from psycopg import AsyncConnection, sql

from affinity.provider.postgres import PostgresProvider
from tests.provider import warm

if TYPE_CHECKING:
    from affinity.provider.contract import Provider
    from affinity.provider.timeline import Timeline

CLIENT: Final = "affinity_test_client"
WORKER: Final = "affinity_test_worker"
SCALER: Final = "affinity_test_scaler"
READER: Final = "affinity_test_reader"

DEFINERS: Final[LiteralString] = """
SELECT proname FROM pg_proc
WHERE pronamespace = 'affinity'::regnamespace AND prosecdef AND has_function_privilege(%s, oid, 'EXECUTE')"""
"""The functions that a role may execute with the rights of the owner."""

CREATE: Final[LiteralString] = """
DO $do$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['affinity_test_client', 'affinity_test_worker'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L', name, name);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
        END;
    END LOOP;
END $do$"""

CLIENT_VERBS: Final = frozenset({
    "get_instance",
    "get_replies", "list_instances", "read_history", "list_sessions",
    "list_workers", "list_code", "desired_workers", "get_quotas", "read_identity", "read_origins",
    "list_work_items", "list_queue", "list_failed_attempts", "list_failures", "group_failures",
    "list_executions", "list_tree", "measure_queues", "count_instances", "count_matching",
    "count_statuses", "sample_waiting_work", "notify_workers", "notify_changes",
    "read_journal", "get_wakes", "get_waits", "list_journals", "get_pending",
    "get_lineage", "describe_journal", "list_requests",
    "write_audit", "list_audit", "read_trends", "sum_trends",
})  # fmt: skip
"""The verbs that `affinity.Client` needs to read and describe. What it starts and sends must be what a client may say
(`tests/provider/test_client_rights.py`), and the conformance suite sends opaque texts.
"""

OWNER_VERBS: Final = frozenset({"set_quotas"})


async def create_roles(connection: AsyncConnection[Any]) -> None:
    """On this server, unless it has them."""
    await connection.execute(CREATE)


def as_role(url: str, role: str) -> str:
    """The URL for that role."""
    return f"{url}{'&' if '?' in url else '?'}user={role}&password={role}"


class RoleProvider:
    """The provider objects of a worker, a client and the migrating role; the latter two are opened when needed."""

    def __init__(self, worker: PostgresProvider, url: str) -> None:
        self._url = url
        self._opened = {WORKER: worker}

    @classmethod
    async def open(cls, url: str, timeline: Timeline | None) -> Provider:
        """On the database at ``url``."""
        worker = await PostgresProvider.open(as_role(url, WORKER), application_name=warm.APPLICATION, timeline=timeline)
        return cast("Provider", cls(worker, url))

    async def aclose(self) -> None:
        for provider in self._opened.values():
            await provider.aclose()

    def __getattr__(self, name: str) -> Any:
        if name in CLIENT_VERBS:
            return partial(self._call, CLIENT, name)
        if name in OWNER_VERBS:
            return partial(self._call, "", name)
        return getattr(self._opened[WORKER], name)

    async def _call(self, role: str, verb: str, *args: Any, **kwargs: Any) -> Any:
        if role not in self._opened:
            url = as_role(self._url, role) if role else self._url
            self._opened[role] = await PostgresProvider.open(url, application_name=warm.APPLICATION)
        return await getattr(self._opened[role], verb)(*args, **kwargs)


@contextmanager
def plain_role(admin: psycopg.Connection[Any], *grants: str) -> Iterator[str]:
    """A role that may log in, and what the grants say."""
    role = sql.Identifier(name := f"plain_{uuid.uuid4().hex}")
    for statement in ("CREATE ROLE {} LOGIN", *grants):
        admin.execute(sql.SQL(statement).format(role))
    try:
        yield name
    finally:
        for statement in ("DROP OWNED BY {} CASCADE", "DROP ROLE {}"):
            admin.execute(sql.SQL(statement).format(role))
