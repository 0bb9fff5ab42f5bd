"""Limits as code declares them and as people change them; closings and charges by work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from affinity.flow.store.contract import LimitChange, LimitCharge, LimitClosing, LimitSpec
from affinity.flow.store.rows import changes_as_json, specs_as_json
from affinity.flow.store.sqlite.keys import add_keys, read_keys, write_keys
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "changes.sql")


def declare(tx: Tx, app: str, code: str, specs: Sequence[LimitSpec]) -> None:
    at = {"app": app, "code": code, "specs": specs_as_json(specs)}
    changed = tx.run(SQL["declare"], at) + tx.run(SQL["undeclare"], at)
    if changed:
        tx.run(SQL["open_of_app"], {"app": app})


def close(tx: Tx, closings: Sequence[LimitClosing]) -> None:
    for closing in closings:
        at = {"name": closing.limit, "until": tx.now + closing.seconds, "reason": closing.reason, "now": tx.now}
        if not _is_declared(tx, closing.limit):
            continue
        if closing.key:
            (key_id,) = add_keys(tx, [(closing.limit, closing.key)]).values()
            tx.run(SQL["close_key"], {"key_id": key_id, "until": at["until"]})
        else:
            tx.run(SQL["close"], at)


def charge(tx: Tx, charges: Sequence[LimitCharge]) -> None:
    declared = [charge for charge in charges if _is_declared(tx, charge.limit)]
    ids = add_keys(tx, {(charge.limit, charge.key) for charge in declared})
    keys = read_keys(tx, ids.values())
    for charge in declared:
        keys[ids[charge.limit, charge.key]].use_rate(charge.units, tx.now)
    write_keys(tx, keys.values(), tx.now)


def change(tx: Tx, changes: Sequence[LimitChange]) -> list[bool]:
    values: list[dict[str, Any]] = json.loads(changes_as_json(changes))
    return [_change(tx, value) for value in values]


def _change(tx: Tx, value: dict[str, Any]) -> bool:
    at = {
        "name": value["limit"],
        "reset": value["reset"],
        "paused": value["paused"],
        "ramp": value["ramp"],
        "by": value["by"],
        "now": tx.now,
    }
    if not tx.run(SQL["note_change"], at):
        return False
    bounds: dict[str, Any] = {name: value[name] for name in ("concurrency", "rate") if name in value}
    if value["key"] is None:
        tx.run(SQL["change"], {**at, "changes": _changed(tx.value(SQL["changes"], at), value, bounds)})
        tx.run(SQL["open"], {"name": value["limit"]})
    else:
        (key_id,) = add_keys(tx, [(value["limit"], value["key"])]).values()
        before = tx.value(SQL["changes_of_key"], {"key_id": key_id})
        tx.run(SQL["change_key"], {**at, "key_id": key_id, "changes": _changed(before, value, bounds)})
        tx.run(SQL["open_key"], {"key_id": key_id})
    return True


def _changed(before: str, value: dict[str, Any], bounds: dict[str, Any]) -> str:
    """Return the changes, as JSON, with new bounds over what was changed before."""
    return to_json(({} if value["reset"] else json.loads(before)) | bounds)


def _is_declared(tx: Tx, name: str) -> bool:
    return bool(tx.value(SQL["is_declared"], {"name": name}))
