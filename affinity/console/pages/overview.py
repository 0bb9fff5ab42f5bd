"""The overview: how many, how full, and what needs a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from affinity.client import code_differences
from affinity.composed.client import Client
from affinity.console.chart import chart_of
from affinity.console.pages.base import Query
from affinity.console.pages.errors import last_hour
from affinity.console.pages.workers import state_of
from affinity.console.payloads import Payloads
from affinity.console.strip import WIDTH
from affinity.errors import InvalidOptions
from affinity.guests import modules
from affinity.provider.contract import WorkerInfo

COUNTED: Final = 1_000
"""Where counts of the queues stop, and moves that are looked at."""

FEW: Final = 10
"""Rows of each list."""

SHOWN: Final = 12
"""Workers that are shown with what they hold."""

SAMPLED: Final = 100
"""Of the oldest rows of each queue, for work that no worker can take; and lapses that are counted."""

POISONED: Final = "OrchestrationPoisoned"


async def overview(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """All of it; each list and count is bounded."""
    workers = await client.workers()
    suspended = (await client.list_instances(status=["suspended"]).page(limit=FEW)).items
    return {
        "statistics": await client.statistics(limit=COUNTED, every_instance=False),
        "counted": COUNTED,
        "few": FEW,
        "workers": _summary(workers),
        **_fleet(workers),
        "differences": code_differences(workers),
        "unserved": await client.unserved_work(limit=SAMPLED),
        "suspended": suspended,
        "poisoned": (await client.list_instances(reason=POISONED).page(limit=FEW)).items if suspended else [],
        "failed": (await client.list_instances(status=["failed"]).page(limit=FEW)).items,
        "errors": await last_hour(client),
        "say": payloads.text,
        **await _conversations(client),
        "cards": await _cards(client),
        **await _moves(client),
    }


async def _conversations(client: Client) -> dict[str, Any]:
    with suppress(InvalidOptions):  # the provider of this database keeps none
        newest = await client.list_conversations().page(limit=100)
        return {
            "requests": (await client.requests().page(limit=FEW)).items,
            "failed_conversations": [found for found in newest.items if found.status == "failed"][:FEW],
        }
    return {"requests": [], "failed_conversations": []}


async def _cards(client: Client) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """What guests show here, and by which template."""
    cards = [page.card for module in modules("page").values() for page in module.PAGES if page.card is not None]
    return [(card.template, found) for card in cards if (found := await card.load(client)) is not None]


def _fleet(workers: Sequence[WorkerInfo]) -> dict[str, Any]:
    """The first workers that have not ended, with the part of their room that is taken, in units of the axis."""
    present = [(one, state_of(one)) for one in workers if state_of(one) != "ended"]
    rows = [(one, state, round(WIDTH * one.sessions / max(one.capacity, 1))) for one, state in present[:SHOWN]]
    return {"fleet": rows, "more_workers": len(present) - len(rows)}


def _summary(workers: Sequence[WorkerInfo]) -> dict[str, int]:
    """Workers by state, and the sessions of the live ones."""
    alive = [one for one in workers if one.alive]
    found = Counter(map(state_of, workers))
    return {
        **{state: found[state] for state in ("alive", "draining", "restarting", "ended")},
        "sessions held": sum(one.sessions for one in alive),
        "capacity": sum(one.capacity for one in alive),
    }


async def _moves(client: Client) -> dict[str, Any]:
    """Of the last hour, as far as they are among the last `COUNTED`."""
    moves = await client.session_moves(limit=COUNTED)
    chart = chart_of(moves)
    lapses = await client.session_moves(reason="lease_expired", limit=SAMPLED)
    is_cut = len(moves) == COUNTED and moves[0].moved_at > chart.begin
    return {
        "moves": [*reversed(moves)][:FEW],
        "chart": chart,
        "is_cut": is_cut,
        "moves_since": moves[0].moved_at if is_cut else chart.begin,
        "lapses": sum(move.moved_at >= chart.begin for move in lapses),
        "most_lapses": SAMPLED,
    }
