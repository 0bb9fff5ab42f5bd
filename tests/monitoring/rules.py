"""The rules and dashboards of `deploy/monitoring`. ``python -m tests.monitoring.rules`` writes the rules as an object
of the Prometheus operator.
"""

from __future__ import annotations

import json
import textwrap
from typing import Any, Final

import yaml

from tests.deploy.kustomize import DEPLOY
from tests.monitoring.series import Selector, selectors

FOLDER: Final = DEPLOY / "monitoring"
ALERTS: Final = FOLDER / "alerts.yaml"
OBJECT: Final = FOLDER / "prometheus-rule.yaml"

HEAD: Final = """\
# Written by `python -m tests.monitoring.rules` from alerts.yaml, which has the same groups for a Prometheus without the
# operator.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: affinity-workers
  labels:
    app.kubernetes.io/name: affinity-workers
    app.kubernetes.io/component: worker
  annotations:
    kubernetes.io/description: Alerts, each with a section in docs/run/runbook.md.
spec:
"""


def rules() -> list[dict[str, Any]]:
    """All rules, recording rules too."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """The rules that alert, by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def exported_selectors() -> list[Selector]:
    """What the rules select of what workers export. A condition on a recorded series holds for what it is made of."""
    made_of = {rule["record"]: selectors(rule["expr"]) for rule in rules() if "record" in rule}
    return [
        Selector(source.name, one.matchers)
        for rule in alerts().values()
        for one in selectors(rule["expr"])
        for source in made_of.get(one.name, [one])
    ]


def dashboards() -> dict[str, dict[str, Any]]:
    """The dashboards of Grafana, by file name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def as_object() -> str:
    """The manifest with the rules."""
    groups = ALERTS.read_text()
    return HEAD + textwrap.indent(groups[groups.index("groups:") :], "  ")


if __name__ == "__main__":
    OBJECT.write_text(as_object())
