"""The name of the database in the contexts of payloads, and whether these are encoded."""

from __future__ import annotations

from typing import Final

from affinity.provider.contract import DatabaseIdentity
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "identity.sql")


def read(tx: Tx) -> DatabaseIdentity:
    ((name, encoded, offloaded, check_value),) = tx.rows(SQL["read"])
    return DatabaseIdentity(name, bool(encoded), bool(offloaded), check_value)


def mark_encoded(tx: Tx, check_value: str, *, former: str | None) -> bool:
    return bool(tx.run(SQL["mark"], {"check_value": check_value, "former": former}))


def mark_offloaded(tx: Tx) -> None:
    tx.run(SQL["mark_offloaded"])
