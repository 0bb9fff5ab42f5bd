"""Releasing sessions before their time: by hand, with a turn, or to make room for new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.limits import MAX_REROUTE
from affinity.provider.contract import OFFER_SECONDS, FetchOptions, IdleSession, SessionRelease, WorkerIdentity
from affinity.provider.postgres.actions import with_shares
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.driver.wire import Params
from affinity.provider.postgres.operations import Database, caller_params
from affinity.provider.statements import load_statements, with_parts

_SQL: Final = load_statements(__package__, "releasing.sql")
_FIND_IDLE: Final = with_parts(_SQL["release_idle"], frozenset({"find"}))
_FREE_IDLE: Final = (_SQL["lock"], with_parts(_SQL["release_idle"], frozenset({"free"})))


def release_params(session_ids: Sequence[str]) -> Params:
    """Return the parameters of ``release_sessions``, to release these sessions."""
    return {"release": Texts(session_ids), "reroute": Int8(MAX_REROUTE)}


async def release_session(db: Database, session_ids: Sequence[str]) -> Sequence[SessionRelease]:
    asked = with_shares(db.shares, _SQL["release"], _SQL["released"], release_params(session_ids))
    ((outcomes,),) = await db.connections.rows.run(*asked)
    return list(outcomes)


async def release_idle_session(
    db: Database, identity: WorkerIdentity, options: FetchOptions, *, order: Sequence[IdleSession]
) -> Sequence[str]:
    """Two statements: rows are locked before their work is read. The second runs only if there is something to
    release.
    """
    params = {
        **caller_params(identity),
        "max_sessions": Int8(options.max_sessions),
        "new": options.tags.routes("new"),
        "names": list(options.names),
        "limit": Int8(options.limit),
        "offer_seconds": OFFER_SECONDS,
        "known": [idle.session_id for idle in order],
        "user": [idle.only_user or "" for idle in order],
        "in_use": [idle.in_use for idle in order],
    }
    found = await db.connections.rows.run(_FIND_IDLE, params)
    if not found:
        return []
    named = {**params, "release": [name for (name,) in found]}
    *_, freed = await db.connections.rows.pipeline(_FREE_IDLE, named)
    return [name for (name,) in freed]
