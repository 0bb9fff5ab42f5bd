"""What rules and dashboards name is exported by a real worker under load; and the dashboards can be imported."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2 as httpx
import psycopg
import pytest

from tests.conftest import Servers
from tests.monitoring.faults import FAULTS
from tests.monitoring.fleet import Fleet, Recording, open_fleet
from tests.monitoring.promtool import check_expressions, needs_promtool
from tests.monitoring.record import recorded
from tests.monitoring.rules import alerts, dashboards, exported_selectors, rules
from tests.monitoring.series import STALE, Selector, Series, grouping_labels, samples, selectors

pytestmark = pytest.mark.anyio

TARGET_LABELS: Final = {"namespace", "job"}
"""Labels that Prometheus gives to what it scrapes."""

LABELS: Final = {
    "worker", "activity", "orchestration", "outcome", "queue", "reason", "status", "state", "verb", "error", "kind",
    "le", "limit", "resource",
}  # fmt: skip

VARIABLES: Final = {"$job": ".*", "$__rate_interval": "5m"}

PATIENCE: Final = 60.0


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            yield f"{name}: {panel['title']}", panel


def panel_expressions() -> list[str]:
    """The expressions of all panels, with values for the variables."""
    found = [target["expr"] for _, panel in panels() for target in panel["targets"]]
    for variable, value in VARIABLES.items():
        found = [one.replace(variable, value) for one in found]
    return found


def recorded_series() -> set[Series]:
    return {_parse(text) for name in FAULTS for text in recorded(name)}


async def test_a_worker_exports_what_rules_and_panels_name(servers: Servers) -> None:
    """Each name, with the labels that are asked for or grouped by. Values of conditions may have been recorded under a
    fault. No label has an id of an instance, a session or a conversation.
    """
    alerting = [str(rule["expr"]) for rule in alerts().values()]
    named = [*exported_selectors(), *(one for text in panel_expressions() for one in selectors(text))]
    server = servers.server("new")
    url = server.url(server.create_database(servers.template("new")))
    async with open_fleet(server, url, ["w-0"]) as fleet:
        exported = await _scrape_until_all(fleet, named)
        recording = Recording(fleet, exported_selectors())
        await recording.record(5, 3, FAULTS["no_worker"].act)
    labels = {name: {label for label, _ in pairs} for name, pairs in exported}
    assert set[str]().union(*labels.values()) <= LABELS
    assert all(STALE in values[3:] for values in recording.series(5).values()), "the worker was killed"
    for name, pairs in recorded_series():
        assert labels.get(name) == {label for label, _ in pairs}, f"{name} has changed: record the faults again"
    labels |= {rule["record"]: labels[selectors(rule["expr"])[0].name] for rule in rules() if "record" in rule}
    for text in [*panel_expressions(), *alerting]:
        asked = grouping_labels(text) | {each.label for one in selectors(text) for each in one.matchers}
        assert asked <= TARGET_LABELS.union(*(labels[one.name] for one in selectors(text))), text


def _fits(one: Selector, series: Series) -> bool:
    """But for conditions on labels of the target."""
    own = tuple(each for each in one.matchers if each.label not in TARGET_LABELS)
    return Selector(one.name, own).selects(series[0], dict(series[1]))


def _parse(text: str) -> Series:
    name, _, labels = text.partition("{")
    return name, tuple(re.findall(r'(\w+)="([^"]*)"', labels))


async def _scrape_until_all(fleet: Fleet, named: list[Selector]) -> set[Series]:
    """What the worker exports once all names are among it, and all conditions fit it, or what was recorded."""
    fitting = {one for one in named if any(_fits(one, series) for series in recorded_series())}
    missing = set[str | Selector]()
    with anyio.move_on_after(PATIENCE):
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            while True:
                text = (await http.get(f"http://127.0.0.1:{fleet.ports['w-0']}/metrics")).text
                found = {series for series, _ in samples(text)}
                missing = set[str | Selector]({one.name for one in named} - {name for name, _ in found})
                missing |= {one for one in {*named} - fitting if not any(_fits(one, series) for series in found)}
                if not missing:
                    return found
                if "affinity_provider_errors_total" in missing:
                    await _end_connections(fleet.url)
                await anyio.sleep(0.2)
    raise AssertionError(f"not exported: {missing}")


async def _end_connections(url: str) -> None:
    """Of the worker: calls of it fail, and are tried again."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'affinity w-0 %'"
        )


@needs_promtool
def test_panels_have_valid_expressions(tmp_path: Path) -> None:
    assert "SUCCESS" in check_expressions(tmp_path, panel_expressions())


def test_dashboards_can_be_imported() -> None:
    """With a variable for the data source, which each panel uses, a unit and a description for each, and no overlap."""
    assert len({board["uid"] for board in dashboards().values()}) == len(dashboards()) == 3
    for name, board in dashboards().items():
        assert board["schemaVersion"] >= 36, name
        assert "id" not in board, "the database that it was exported from"
        variables = {one["name"]: one for one in board["templating"]["list"]}
        assert variables["datasource"]["type"] == "datasource", name
        used = set(re.findall(r"\$\{?(\w+)", str(board["panels"])))
        assert used == variables.keys() | {"__rate_interval"}, name
        assert Counter(panel["id"] for panel in board["panels"]).most_common(1)[0][1] == 1, name
        for one, other in combinations([panel["gridPos"] for panel in board["panels"]], 2):
            assert not _overlap(one, other), name


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[place] < other[place] + other[size] and other[place] < one[place] + one[size]
        for place, size in (("x", "w"), ("y", "h"))
    )


def test_every_panel_has_a_unit_and_a_description() -> None:
    for name, panel in panels():
        assert panel["description"].endswith("."), name
        unit = (
            panel["options"]["yAxis"]["unit"]
            if panel["type"] == "heatmap"
            else panel["fieldConfig"]["defaults"]["unit"]
        )
        assert unit in {"none", "s", "ops", "percentunit"}, name
        assert {panel["datasource"]["uid"], *(one["datasource"]["uid"] for one in panel["targets"])} == {
            "${datasource}"
        }
