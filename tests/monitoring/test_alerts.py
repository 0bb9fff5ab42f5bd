"""The alerts of `deploy/monitoring`: each is raised by a fault of a real fleet, whose series were recorded, and by no
other; and each has a section in the runbook.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.kustomize import ROOT
from tests.monitoring.faults import FAULTS
from tests.monitoring.promtool import check_rules, needs_promtool, play
from tests.monitoring.record import AT, FOLDER, SECONDS, recorded
from tests.monitoring.rules import ALERTS, OBJECT, alerts, as_object
from tests.monitoring.series import STALE, encode, selectors, stretch

RUNBOOK: Final = ROOT / "docs" / "run" / "runbook.md"

STRETCH: Final = 30
"""Seconds of Prometheus for one of the recording: a fault of 45 s lasts 22 min."""


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    assert "SUCCESS" in check_rules(ALERTS)


def test_the_object_of_the_operator_has_the_same_rules() -> None:
    assert OBJECT.read_text() == as_object()


@needs_promtool
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_raises_its_alerts_and_no_other(name: str, tmp_path: Path) -> None:
    """And none before it has happened."""
    ever = f'group by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{SECONDS * STRETCH}s]))'
    raised = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in FAULTS[name].alerts]
    series = [{"series": key, "values": stretch(key, values, STRETCH)} for key, values in recorded(name).items()]
    expressions = [
        {"expr": ever, "eval_time": f"{second * STRETCH}s", "exp_samples": expected}
        for second, expected in ((AT - 1, list[Any]()), (SECONDS - 1, raised))
    ]
    play(
        tmp_path,
        {
            "rule_files": [str(ALERTS)],
            "evaluation_interval": f"{STRETCH}s",
            "tests": [
                {"interval": f"{STRETCH}s", "input_series": series, "promql_expr_test": expressions, "name": name}
            ],
        },
    )


def test_every_alert_has_a_fault_and_every_fault_is_recorded() -> None:
    assert {alert for fault in FAULTS.values() for alert in fault.alerts} == alerts().keys()
    assert {path.stem for path in FOLDER.iterdir()} == FAULTS.keys()
    assert FAULTS["healthy"].alerts == frozenset()


def test_every_alert_says_what_a_person_needs() -> None:
    for name, rule in alerts().items():
        assert rule["labels"].keys() == {"severity"}, name
        assert rule["labels"]["severity"] in {"page", "ticket"}, name
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}, name
        address, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert address.endswith("/blob/main/docs/run/runbook.md"), name
        assert anchor == name.lower()


def test_every_alert_has_a_section_of_the_runbook_and_every_section_an_alert() -> None:
    """With its expression's meaning, commands, and what to do."""
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL))
    assert list(sections) == list(alerts())
    for name, section in sections.items():
        assert re.findall(r"^\*\*(Meaning|Look|Do)\*\*", section, re.MULTILINE) == ["Meaning", "Look", "Do"], name
        assert "affinity " in section, name


def test_values_in_the_notation_of_promtool() -> None:
    assert encode([0.0, 0.04, None, None, STALE, 1.0, 1.0, 2.26]) == "0+0x1 _x2 stale 1+0x1 2.3"
    waiting = 'affinity_oldest_waiting_seconds{queue="messages"}'
    assert stretch(waiting, "0+0x1 _x2 stale 1.5+0x1 2.3", 10) == "0+0x1 _x2 stale 15+0x1 23"
    assert stretch("affinity_turns_total{}", "1+0x1", 10) == "1+0x1"


def test_selectors_of_an_expression() -> None:
    one, two = selectors('sum by (a) (affinity_x_total{b=~"c|d", e!="f"}) / affinity:y:rate5m')
    assert (one.name, two.name, two.matchers) == ("affinity_x_total", "affinity:y:rate5m", ())
    assert one.selects("affinity_x_total", {"b": "d", "e": "g"})
    assert not one.selects("affinity_x_total", {"b": "dd"})
    assert not one.selects("affinity_x_total", {"b": "c", "e": "f"})
