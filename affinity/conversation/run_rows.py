"""The rows of the runs of several wakes (`affinity.conversation.wake_runs`) among the steps of a journal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from pydantic_core import from_json, to_json

from affinity.conversation.journal import Step
from affinity.records import parse_stored

OF_RUN: Final = "run"
"""Stands for the wake in these rows: no wake has this id."""

RUN: Final = "run"
"""First part of their keys, before the name and the id of the run."""

INPUTS: Final = "inputs"
"""Part of the key of the row that says which inputs the wake had in which the run has begun."""

REQUEST: Final = "request"
"""Part of the keys of requests, before the place of the request."""


def runs_in(rows: Mapping[str, Step]) -> Collection[tuple[str, str]]:
    """Return names and ids of the runs that have these rows."""
    return {(name, run_id) for _, name, run_id, *_ in map(from_json, rows)}


def rows_of_runs(steps: Iterable[Step], begun_in: str | None) -> dict[str, Step]:
    """Return the rows of runs by their keys; with ``begun_in`` only of those that this wake has begun: an interrupt
    among its inputs ends the others, and an earlier attempt has had the same inputs.
    """
    rows = {row.key: row for row in steps if row.wake_id == OF_RUN}
    return {key: row for key, row in rows.items() if begun_in is None or run_begun_in(_run_of(key)) == begun_in}


def run_begun_in(run_id: str) -> str:
    """Return the id of the wake in which a run has begun."""
    return run_id.rpartition(".")[0]


def _run_of(key: str) -> str:
    """Return the id of the run whose row has this key."""
    _, _, run_id, *_ = from_json(key)
    return str(run_id)


def order_of(run_id: str) -> tuple[int, int, int]:
    """Return what orders the runs of a conversation by their begin."""
    wake, _, number = run_id.rpartition(".")
    *_, execution, place = wake.rsplit("-", 2)
    return int(execution), int(place), int(number)


def note_answers(rows: dict[str, Step], inputs: Iterable[tuple[str, str]]) -> None:
    """Put the answers among the inputs, each a kind and a payload, into the rows of the requests that wait for them."""
    waiting: dict[str, Step] = {}
    for row in rows.values():
        _, _, _, part, *_ = from_json(row.key)
        if part == REQUEST and "answer" not in (known := parse_stored(row.result or "{}")):
            waiting[known["request"]] = row
    if not waiting:
        return
    for kind, payload in inputs:
        answered = waiting.get(parse_stored(payload).get("request_id", ""))
        if answered is not None:
            known = parse_stored(answered.result or "{}")
            rows[answered.key] = answered._replace(result=to_json({**known, "kind": kind, "answer": payload}).decode())
