"""The timeline of a file: see `affinity.provider.timeline`."""

from __future__ import annotations

from typing import Final

from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.statements import load_statements
from affinity.provider.timeline import Timeline

SQL: Final = load_statements(__package__, "timeline.sql")


def learn(tx: Tx, known: Timeline) -> tuple[str, int]:
    """The token and how far the file is; the token is a new one if the file is behind ``known``."""
    token, reached = read(tx)
    if token == known.token and reached < known.reached:
        begin(tx)
        return read(tx)
    return token, reached


def advance(tx: Tx) -> None:
    """Move the timeline on: an earlier backup has not reached this point."""
    tx.run(SQL["advance"])


def read(tx: Tx) -> tuple[str, int]:
    """The token and how far the file is."""
    ((token, reached),) = tx.rows(SQL["learn"])
    return token, reached


def begin(tx: Tx) -> None:
    """All ids that can be issued again jump forward, further than they can have come; every lease ends, and every
    session has a new epoch.
    """
    # The leases first: a new epoch of a session that is held would be recorded as a move.
    for name in ("begin", "end_leases", "raise_epochs", "renew_epochs", "begin_message_ids", "raise_message_ids"):
        tx.run(SQL[name], {"now": tx.now})
