"""Instances as clients see them: reading, listing, deleting."""

from __future__ import annotations

import heapq
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Final, LiteralString, TypeAlias

from affinity.limits import FEW_LABELLED, MAX_PAGE
from affinity.provider.contract import (
    FINISHED,
    OPEN,
    Deletion,
    Generation,
    InstanceFilter,
    InstanceInfo,
    InstanceStatus,
    MatchingCounts,
    NewInstance,
    NewMessage,
    Restart,
)
from affinity.provider.rows import to_instance, to_matching_counts
from affinity.provider.sqlite import holds, messages, parking, quotas, suspension
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.statements import load_statements, with_parts
from affinity.records import Gate, labels_text

SQL: Final = load_statements(__package__, "instances.sql")
_ONE: Final = with_parts(SQL["instances"], frozenset({"instance_id", "shown"}))


def get_instances(tx: Tx, instance_ids: Sequence[str]) -> list[InstanceInfo | None]:
    rows = [tx.row(_ONE, {"instance_id": instance_id}) for instance_id in instance_ids]
    return [None if row is None else to_instance(row, instant) for row in rows]


def list_instances(tx: Tx, where: InstanceFilter, limit: int) -> list[InstanceInfo]:
    if where.by_end:
        return _list_ended(tx, where, limit)
    rows = chain.from_iterable(each.rows("shown", min(limit, MAX_PAGE)) for each in _listings(tx, where))
    found = [to_instance(row, instant) for row in rows]
    found.sort(key=attrgetter("created_at", "instance_id"), reverse=not where.oldest_first)
    return found[:limit]


def _list_ended(tx: Tx, where: InstanceFilter, limit: int) -> list[InstanceInfo]:
    arguments = _conditions(where)
    parts: set[LiteralString] = {*arguments, "all" if where.most is None else "most"}
    if where.order == "duration":
        parts |= {"newest", "shortest" if where.oldest_first else "longest"}
    else:
        parts |= {"by_end", "oldest" if where.oldest_first else "newest"}
    place = _start_of(where)
    places = {"after_time": place[0], "after_id": place[1], "most": where.most, "limit": min(limit, MAX_PAGE)}
    rows = tx.rows(with_parts(SQL["list_ended"], frozenset(parts)), {**arguments, **places})
    return [to_instance(row, instant) for row in rows]


def count_matching(tx: Tx, where: InstanceFilter, limit: int) -> MatchingCounts:
    listings = _listings(tx, replace(where, oldest_first=False, order="started"))
    pages = [each.count(limit) for each in listings]
    ends = [page.after for page in pages if page.after is not None]
    if not ends:
        return MatchingCounts(counts=_total(pages), after=None)
    end = max(ends)  # the first of the pages that are full; the others are cut there
    cut = [
        page if page.after == end else each.until(end).count(limit) for page, each in zip(pages, listings, strict=True)
    ]
    return MatchingCounts(counts=_total(cut), after=end)


def _total(pages: Iterable[MatchingCounts]) -> dict[InstanceStatus, int]:
    counts: Counter[InstanceStatus] = Counter()
    for page in pages:
        counts.update(page.counts)
    return dict(counts)


@dataclass(frozen=True)
class _Listing:
    """The instances that one index gives: all, those of a rare status, or those of one phase with a label."""

    tx: Tx
    where: InstanceFilter
    statement: LiteralString
    arguments: Mapping[str, Any]
    parts: frozenset[LiteralString]
    is_slim: bool = False  # its places tell that an instance fits, and its status

    def rows(self, form: LiteralString, limit: int) -> list[Any]:
        after = _start_of(self.where)
        is_slim = self.is_slim and form == "counted"
        statement = with_parts(SQL[self.statement], self.parts | {form, "slim" if is_slim else "whole"})
        return self.tx.rows(statement, {**self.arguments, "after_time": after[0], "after_id": after[1], "limit": limit})

    def count(self, limit: int) -> MatchingCounts:
        return to_matching_counts(self.rows("counted", limit), limit, instant)

    def first(self, most: int) -> list[_Place]:
        """Return the places of the first instances, whatever else they are to be."""
        name: LiteralString = "first_labelled" if self.statement == "labelled" else "first"
        return self.tx.rows(with_parts(SQL[name], self.parts), {**self.arguments, "most": most})

    def until(self, place: tuple[datetime, str]) -> _Listing:
        """Return the listing without the instances behind a place."""
        return self.up_to((place[0].timestamp(), place[1]))

    def up_to(self, place: _Place) -> _Listing:
        arguments = {**self.arguments, "until_time": place[0], "until_id": place[1]}
        return replace(self, arguments=arguments, parts=self.parts | {"until"})


_Place: TypeAlias = tuple[float, str]
"""Time of the start, and instance id: the order of all listings."""


def _start_of(where: InstanceFilter) -> _Place:
    """Return the place behind which a page begins."""
    if where.after is not None:
        return where.after[0].timestamp(), where.after[1]
    is_forward = where.oldest_first and where.order != "duration"
    return (-math.inf if is_forward else math.inf, "")


def _listings(tx: Tx, where: InstanceFilter) -> list[_Listing]:
    """Return listings that together have the wanted instances: one for each phase of a label, or each rare status."""
    found = _all_listings(tx, where)
    if where.most is None:
        return found
    places = heapq.merge(*(each.first(where.most) for each in found), reverse=not where.oldest_first)
    last = next(islice(places, where.most - 1, None), None)
    return found if last is None else [each.up_to(last) for each in found]


def _all_listings(tx: Tx, where: InstanceFilter) -> list[_Listing]:
    arguments = _conditions(where)
    order: LiteralString = "oldest" if where.oldest_first else "newest"
    parts = frozenset({*arguments, order})
    if where.by_label:
        parts -= {"labels"}  # which its index has
        label = _choose_label(tx, where, arguments, parts)
        parts |= {"several"} if len(where.labels) > 1 else set()
        return [
            _Listing(
                tx,
                where,
                "labelled",
                {**arguments, **label, "phase": phase},
                parts,
                is_slim=where.is_placed and phase != OPEN,
            )
            for phase in where.phases
        ]
    if rare := where.rare_statuses:
        parts |= {"one_status"}
        return [_Listing(tx, where, "instances", {**arguments, "one_status": status}, parts) for status in rare]
    return [_Listing(tx, where, "instances", arguments, parts)]


def _conditions(where: InstanceFilter) -> dict[LiteralString, Any]:
    """Return the arguments of the conditions that a filter has, by the parts of the statements that need them."""
    conditions: dict[LiteralString, Any] = {
        "status": json.dumps(list(where.status)) if where.status else None,
        "name": where.name,
        "prefix": where.prefix,
        "parent_id": where.parent_id,
        "reason": where.reason,
        "session_id": where.session_id,
        "version": where.version,
        "suffix": where.name_suffix,
        "without": json.dumps(list(where.without_suffix)) if where.without_suffix else None,
        "labels": labels_text(where.labels),
        "created_since": where.created_since and where.created_since.timestamp(),
        "created_before": where.created_before and where.created_before.timestamp(),
    }
    return {name: wanted for name, wanted in conditions.items() if wanted is not None}


def _choose_label(
    tx: Tx, where: InstanceFilter, arguments: Mapping[str, Any], parts: frozenset[LiteralString]
) -> dict[str, str]:
    """Return the label that is the rarest behind the cursor: with the fewest instances, or else the one whose first
    `FEW_LABELLED` reach furthest.
    """
    labels = [{"key": key, "value": value} for key, value in where.labels.items()]
    if len(labels) == 1:
        return labels[0]
    sign = 1 if where.oldest_first else -1
    after = (-sign * math.inf, "") if where.after is None else (where.after[0].timestamp(), where.after[1])
    statement = with_parts(SQL["measure_label"], parts)
    few = {**arguments, "few": FEW_LABELLED, "after_time": after[0], "after_id": after[1]}

    def commonness(label: dict[str, str]) -> tuple[float, int]:
        measured = [tx.row(statement, {**few, **label, "phase": phase}) or (0, None) for phase in where.phases]
        reached = [sign * last for number, last in measured if number == FEW_LABELLED]
        return -min(reached, default=math.inf), sum(number for number, _ in measured)

    return min(labels, key=commonness)


def restart_instances(tx: Tx, restarts: Sequence[Restart]) -> list[bool]:
    quotas.check_new(tx, [restart.new for restart in restarts], 0)
    return [_RESTARTS[restart.when](tx, restart) for restart in restarts]


def _restart_ended(tx: Tx, restart: Restart) -> bool:
    return _restart(tx, restart.new, restart.ended)


def _replace_start(tx: Tx, restart: Restart) -> bool:
    new = restart.new
    place = {"instance_id": new.instance_id, "ended": restart.ended, "name": new.name, "now": tx.now}
    since = tx.value(SQL["waiting"], place)
    if since is None:
        return False
    latest = math.inf if restart.within is None else since + restart.within
    starts_at = min(messages.start_time(tx, new) or tx.now, latest)
    gate, limited = messages.gate_columns(new, starts_at if starts_at > tx.now else None)
    tx.run(SQL["leave_line"], place)
    columns = {"gate": gate, "limited": limited, "starts_at": starts_at, "start": new.start}
    tx.run(
        SQL["replace_start"],
        {**place, **columns, "version": new.version, "session_id": new.session_id, "labels": labels_text(new.labels)},
    )
    tx.run(SQL["replace_messages"], {**place, **columns})
    return True


def _queue_start(tx: Tx, restart: Restart) -> bool:
    new, gate = restart.new, restart.new.gate
    following = {
        **{"version": new.version, "start": new.start, "session_id": new.session_id},
        **{"gate": gate, "delay": new.delay, "not_before": new.not_before, "labels": new.labels},
    }
    place = {"instance_id": new.instance_id, "ended": restart.ended, "name": new.name, "generation": new.generation}
    if not tx.run(SQL["queue_start"], {**place, "next": json.dumps(following)}):
        return False
    if restart.cancel is not None:
        stop = NewMessage(instance_id=new.instance_id, payload=restart.cancel, ends_wait=True)
        messages.send(tx, [stop])
    return True


_RESTARTS: Final = {"ended": _restart_ended, "waiting": _replace_start, "next": _queue_start}


def begin_next_starts(tx: Tx, most: int) -> int:
    """Begin starts that have waited for the end of their instances; return how many."""
    found = tx.gather(SQL["next_starts"], {"most": most})
    for instance_id, ended, name, text in found:
        following = json.loads(text)
        gate = following.pop("gate")
        _restart(
            tx,
            NewInstance(instance_id=instance_id, name=name, gate=None if gate is None else Gate(*gate), **following),
            ended,
        )
    tx.many(SQL["forget_next"], [instance_id for instance_id, *_ in found])
    return len(found)


def _restart(tx: Tx, new: NewInstance, ended: Generation) -> bool:
    starts_at = messages.start_time(tx, new)
    gate, limited = messages.gate_columns(new, starts_at)
    arguments = {
        "instance_id": new.instance_id,
        "ended": ended,
        "generation": new.generation,
        "name": new.name,
        "version": new.version,
        "session_id": new.session_id,
        "labels": labels_text(new.labels),
        "gate": gate,
        "limited": limited,
        "starts_at": starts_at,
        "now": tx.now,
    }
    if not tx.run(SQL["restart"], arguments):
        return False
    tx.many(SQL["delete_values"], [new.instance_id])
    clear(tx, [new.instance_id])
    messages.send(tx, [messages.start_message(new, starts_at)])
    return True


def delete_instances(tx: Tx, instance_ids: Sequence[str], *, force: bool = False, tree: bool = True) -> list[Deletion]:
    return [_delete(tx, instance_id, force=force, tree=tree) for instance_id in instance_ids]


def _delete(tx: Tx, instance_id: str, *, force: bool, tree: bool) -> Deletion:
    statuses: dict[str, str] = dict(tx.rows(SQL["tree"], {"instance_id": instance_id, "tree": tree}))
    if not statuses:
        return "unknown"
    if not force and not FINISHED.issuperset(statuses.values()):
        return "running"
    doomed = list(statuses)
    orphaned = tx.rows(SQL["orphaned"], {"instance_ids": json.dumps(doomed)})
    messages.send(
        tx, [NewMessage(instance_id=name, generation=generation, payload=text) for name, generation, text in orphaned]
    )
    clear(tx, doomed)
    tx.many(suspension.SQL["forget"], doomed)
    tx.many(parking.SQL["remove"], doomed)
    for what in ("history", "ended", "sizes", "keys", "values", "failures", "instances"):
        tx.many(SQL[f"delete_{what}"], doomed)
    return "deleted"


def clear(tx: Tx, instance_ids: Sequence[str]) -> None:
    """Remove all queue rows of instances, their holds and their watches."""
    tx.many(SQL["clear_items"], instance_ids)
    tx.many(SQL["clear_messages"], instance_ids)
    holds.clear(tx, instance_ids)
