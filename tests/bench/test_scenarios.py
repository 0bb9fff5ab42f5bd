"""A smoke of each scenario: it runs, its results are right (the scenario itself checks them), its report is whole.

No time is asserted. Peers take part where they are installed.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from bench.cli import main
from bench.scenarios import ON_SQLITE, SCENARIOS
from bench.systems import OURS, SYSTEMS
from tests.conftest import Servers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LONG = r"\[(?!turns|latency|limit|sql)"
"""A pattern of the scenarios that are tried at night: all but a few short ones."""

OF_PARTS = ("conversation",)
"""Compares parts of ours, each with a series of its own."""

WITHOUT_BAR = ("memory", "state")
"""The bar of one needs more instances than a quick run has; the other only reports."""


def run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The report of a quick run."""
    path = tmp_path / "result.json"
    done = CliRunner().invoke(main, [*arguments, "--quick", "--json", str(path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def check(result: dict[str, Any], scenario: str) -> None:
    assert {"command", "machine", "database", "settings", "rounds", OURS} <= set(result)
    (report,) = result["reports"]
    assert report["scenario"] == scenario
    ours = [one for one in report["series"] if one["system"] == OURS or scenario in OF_PARTS]
    assert ours
    values = [value for one in ours if one["metric"] != "bytes in the worker" for value in one["rounds"]]
    assert values
    assert all(value >= 0 for value in values) or scenario == "steps"  # a difference of two short runs
    assert report["bars"] or scenario in WITHOUT_BAR or set(SYSTEMS) - set(result)


@pytest.mark.nightly_cases(LONG)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_postgresql(scenario: str, servers: Servers, tmp_path: Path) -> None:
    check(run(tmp_path, scenario, "--url", servers.server("old").url()), scenario)


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", sorted(set(ON_SQLITE) - {"sqlite"}))
def test_on_sqlite(scenario: str, tmp_path: Path) -> None:
    check(run(tmp_path, scenario, "--provider", "sqlite"), scenario)


def test_it_may_trace(tmp_path: Path) -> None:
    result = run(tmp_path, "turns", "--provider", "sqlite", "--system", OURS, "--tracing")
    assert result[OURS]["tracing"] is True


def test_draws_what_it_compares(servers: Servers, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    run(tmp_path, "limit", "--url", servers.server("new").url(), "--svg", str(figures))
    (drawn,) = figures.iterdir()
    assert drawn.name == "limit.svg"
    texts = [node.text for node in ElementTree.parse(drawn).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314 -- ours
    assert {"sql", OURS} <= set(texts)


def test_a_missed_bar_fails_a_check(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("bench.scenarios.limit"), "SHARE_BAR", 1e9)
    arguments = ["limit", "--quick", "--url", servers.server("old").url()]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    refused = CliRunner().invoke(main, [*arguments, "--check"])
    assert refused.exit_code == 1
    assert "MISSED" in refused.output
