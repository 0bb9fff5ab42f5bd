"""Limits of one database: how they are kept, and who has reached them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Final

from affinity.errors import QuotaExceeded
from affinity.provider.contract import NewInstance, NewMessage, Quotas
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "quotas.sql")


def get(tx: Tx) -> Quotas:
    for instances, unread_events, instance_bytes in tx.rows(SQL["get"]):
        return Quotas(instances=instances, unread_events=unread_events, instance_bytes=instance_bytes)
    return Quotas()


def set_all(tx: Tx, limits: Quotas) -> None:
    for statement in ("uncount_creations", "uncount_deletions", "clear"):
        tx.run(SQL[statement])
    if limits.instances is not None:
        for statement in ("count_instances", "count_creations", "count_deletions"):
            tx.run(SQL[statement])
    if limits.instance_bytes is None:
        tx.run(SQL["clear_sizes"])
    tx.run(SQL["set"], {each.name: getattr(limits, each.name) for each in fields(limits)})


def check_new(tx: Tx, instances: Sequence[NewInstance], added: int) -> None:
    """Refuse instances that are too many or too large; ``added`` of them are new.

    Raises:
        QuotaExceeded: they are.
    """
    quotas = get(tx)
    if (most := quotas.instance_bytes) is not None and any(len(new.start.encode()) > most for new in instances):
        raise QuotaExceeded("instance_bytes", most)
    if (most := quotas.instances) is not None and added and tx.value(SQL["counted"]) + added > most:
        raise QuotaExceeded("instances", most)


def measure(tx: Tx, instance_ids: Collection[str]) -> dict[str, int]:
    """The bytes of the instances, as far as they exist."""
    wanted = {"instance_ids": to_json(sorted(instance_ids))}
    tx.run(SQL["measure"], wanted)
    return dict(tx.gather(SQL["sizes"], wanted))


def find_too_large(tx: Tx, messages: Sequence[NewMessage], most: int) -> set[int]:
    """Which of the messages with a limit would give their instance more than ``most`` bytes."""
    sizes = measure(tx, {message.instance_id for message in messages if message.unread_limit is not None})
    over: set[int] = set()
    for n, message in enumerate(messages):
        size = sizes.get(message.instance_id)
        if message.unread_limit is None or size is None:
            continue
        sizes[message.instance_id] = size = size + len(message.payload.encode())
        if size > most:
            over.add(n)
    return over
