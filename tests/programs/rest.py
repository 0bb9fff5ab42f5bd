"""Rules for every table when an `affinity.testing.Env` is at rest: nothing runs, and nothing is due.

Each table has a rule. A table without one fails `check`: a migration that adds a table adds a rule to `rest_work`,
`rest_data` or `rest_limits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from affinity.explain.reasons import Explainer
from affinity.testing import Env
from tests.programs import rest_data, rest_limits, rest_work
from tests.programs.tables import Rule, Tables, read_tables

RULES: Final[Mapping[str, Rule]] = {**rest_work.RULES, **rest_data.RULES, **rest_limits.RULES}
"""By table."""

MOVING: Final = frozenset(
    {"turn", "activity_queued", "activity_running", "holder_lapsed", "holder_busy", "session_moving"}
)
"""Reasons of `affinity.explain` that a worker ends without anything from outside: none is left at rest."""


class NotAtRest(AssertionError):
    """Something is left over."""


async def check(env: Env) -> None:
    """Assert that nothing is left over in the database of an env in which nothing runs and nothing is due.

    Raises:
        NotAtRest: with all that is wrong.
    """
    tables = await read_tables(env)
    wrong = [*find(tables), *await unexplained(env, tables)]
    if wrong:
        raise NotAtRest("\n".join(["the database is not at rest:", *wrong]))


def find(tables: Tables) -> Sequence[str]:
    """The violations of the rules of the tables."""
    wrong = [f"{name}: no rule says what its rows may be" for name in sorted(tables.rows.keys() - RULES)]
    for name, rule in RULES.items():
        if name in tables.rows:
            wrong += [f"{name}: {each}" for each in rule(tables)]
    return wrong


async def check_queues(env: Env) -> None:
    """Assert rules that hold at any time, also while workers run.

    Unfinished instances wait for the activities and timers in the queues, and only the first one of each order may run.

    Raises:
        AssertionError: with all that is wrong.
    """
    async with env._by_hand():  # which uses the same connection
        tables = await read_tables(env)
    wrong = [*rest_work.misplaced(tables)]
    assert not wrong, "\n".join(["the queues have what should not be there:", *wrong])


async def unexplained(env: Env, tables: Tables) -> Sequence[str]:
    """Instances that have not ended, and activities in the queue, without a reason that `affinity.explain` can name."""
    wrong = []
    for instance_id in tables.instances:
        if not tables.is_live(instance_id):
            continue
        reason = await Explainer(env._own).explain(instance_id)
        if reason is None or reason.code in MOVING:
            wrong.append(f"instances: {instance_id!r} has not ended: {reason}")
        explainer = Explainer(env._own, (instance_id,))
        for item in await env._own.list_work_items(instance_id, 1000):
            if item.state == "limited":
                continue  # an area says whether its work may wait at a limit
            code, text, _ = await explainer._why(item)
            if code in MOVING:
                wrong.append(f"worker_queue: {item.key} waits {text} ({code})")
    return wrong
