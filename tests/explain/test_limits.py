"""The reasons why work waits at its limits, as sentences, from what a store says."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from unittest.mock import AsyncMock

import pytest

from affinity.explain import duration
from affinity.flow.reasons import COUNTED, item_reasons
from affinity.flow.store.contract import (
    UNCHANGED,
    LimitKeyRow,
    LimitProvider,
    LimitRow,
    LimitSpec,
    LimitWait,
    RateBound,
)
from affinity.provider.contract import WorkKey

pytestmark = pytest.mark.anyio

AT: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY: Final = WorkKey("order-17", 1, 2)
MINUTE: Final = RateBound(count=600, per=60.0)


def wait(limit: str, key: str = "", **more: Any) -> LimitWait:
    defaults = {"cause": "concurrency", "priority": 0, "in_use": 5, "concurrency": 5, "used": 0, "rate": None}
    rest = {"before": 0, "seconds": None}
    return LimitWait(key=KEY, limit=limit, limit_key=key, since=AT, **{**defaults, **rest, **more})


def limit(**more: Any) -> LimitRow:
    unchanged = {"concurrency": UNCHANGED, "rate": UNCHANGED, "paused": False, "ramp": None, "resumed_at": None}
    rest = {"closed_until": None, "closed_for": None, "changed_by": None, "changed_at": None}
    counts = {"in_use": 0, "waiting": 1, "oldest": AT, "admitted": 0, "waited": 0.0, "keys": 1}
    spec = LimitSpec(name="model", keyed=True)
    return LimitRow(spec=spec, app="a", code="1", declared=True, **{**unchanged, **rest, **counts, **more})


def key(**more: Any) -> LimitKeyRow:
    unchanged = {"concurrency": UNCHANGED, "rate": UNCHANGED, "paused": False, "closed_until": None}
    counts = {"in_use": 0, "used": 0, "waiting": 1, "oldest": AT, "admitted": 0}
    return LimitKeyRow(limit="model", key="acme", **{**unchanged, **counts, **more})


@pytest.mark.parametrize(
    ("waiting", "row", "key_row", "code", "text"),
    [
        (wait("tenant", "acme", before=213, seconds=40.2), None, None, "limited",
         "'tenant' of 'acme': 5 of 5 in use, 213 before it, about 40 s"),
        (wait("model", concurrency=0, in_use=2), None, None, "limited", "'model': 2 of 0 in use"),
        (wait("model", cause="rate", used=600, rate=MINUTE, priority=10, seconds=0.2), None, None, "limited",
         "'model': 600 of 600 in 60 s used, priority 10, about 1 s"),
        (wait("model", cause="order", before=COUNTED), None, None, "limited", "'model': 1000 or more before it"),
        (wait("model", cause="order"), None, None, "limited", "'model': it is admitted next"),
        (wait("model", cause="paused", before=3), limit(paused=True, changed_by="ann", changed_at=AT), None,
         "limit_paused",
         "'model': it is paused by 'ann' since 2026-03-01 12:00:00 UTC, until `affinity limits resume model`,"
         " 3 before it"),
        (wait("model", "acme", cause="paused"), limit(changed_by="ann"), key(paused=True), "limit_paused",
         "'model' of 'acme': this key is paused, until `affinity limits resume model --key acme`"),
        (wait("model", "acme", cause="paused"), limit(paused=True), key(paused=True), "limit_paused",
         "'model' of 'acme': it is paused, until `affinity limits resume model`"),
        (wait("model", "acme", cause="closed"), limit(closed_until=AT, closed_for="429"), key(), "limit_closed",
         "'model' of 'acme': it is closed until 2026-03-01 12:00:00 UTC (429)"),
        (wait("model", "acme", cause="closed"), limit(), key(closed_until=AT), "limit_closed",
         "'model' of 'acme': it is closed until 2026-03-01 12:00:00 UTC"),
        (wait("model", cause="paused"), None, None, "limit_paused",  # changed since it was read
         "'model': it is paused, until `affinity limits resume model`"),
    ],
)  # fmt: skip
async def test_a_wait_in_one_sentence(
    waiting: LimitWait, row: LimitRow | None, key_row: LimitKeyRow | None, code: str, text: str
) -> None:
    store: Any = AsyncMock(spec=LimitProvider)
    store.get_limit_waits.return_value = [waiting]
    store.list_limits.return_value = [] if row is None else [row]
    store.list_limit_keys.return_value = [] if key_row is None else [key_row]
    found = await item_reasons(store, [KEY])
    assert found.keys() == {KEY}
    assert found[KEY][:2] == (code, f"which waits for limit {text}")
    fields = found[KEY][2]
    assert (fields["limit"], fields["limit_key"], fields["since"]) == (waiting.limit, waiting.limit_key or None, AT)
    if code == "limit_closed":
        assert fields["due_at"] == AT


async def test_a_provider_without_limits_is_not_asked() -> None:
    assert await item_reasons(AsyncMock(spec=()), [KEY]) == {}


def test_durations_have_one_unit() -> None:
    shown = [duration(seconds) for seconds in (0.0, 89.6, 91.0, 5_400.0, 5_401.0, 172_801.0)]
    assert shown == ["1 s", "90 s", "2 min", "90 min", "2 h", "2 days"]
