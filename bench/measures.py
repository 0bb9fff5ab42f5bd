"""What was measured: values of several rounds, bars that they must hold, and the report of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from bench.progress import rounds_shown

Better = Literal["more", "less"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A quantity with its unit."""

    name: str  # with its unit: "turns/s"
    better: Better = "more"
    digits: int = 0


RATE = Metric(name="turns/s")
MEDIAN_TURN = Metric(name="median turn, ms", better="less", digits=2)


@dataclass(slots=True)
class Series:
    """The values of one metric of one system in one case, a value a round."""

    case: str
    system: str
    metric: Metric
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Of the rounds."""
        return median(self.values)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bound that the issue sets."""

    text: str
    value: float
    bound: float
    better: Better = "more"

    @property
    def met(self) -> bool:
        """Whether the value holds it."""
        return self.value >= self.bound if self.better == "more" else self.value <= self.bound

    @property
    def verdict(self) -> str:
        """One line for people."""
        sign = "at least" if self.better == "more" else "at most"
        return f"{'met   ' if self.met else 'MISSED'}  {self.text}: {self.value:,.2f}, {sign} {self.bound:g}"


@dataclass(slots=True)
class Report:
    """Everything that a scenario has to say."""

    scenario: str
    series: list[Series] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, case: str, system: str, values: Mapping[Metric, float]) -> None:
        """Record one round."""
        for metric, value in values.items():
            found = self.find(case, system, metric)
            if found is None:
                found = Series(case, system, metric)
                self.series.append(found)
            found.values.append(value)

    def find(self, case: str, system: str, metric: Metric) -> Series | None:
        """A series, if it was measured."""
        wanted = (one for one in self.series if (one.case, one.system, one.metric) == (case, system, metric))
        return next(wanted, None)

    def median(self, case: str, system: str, metric: Metric) -> float | None:
        """The median over the rounds, if it was measured."""
        found = self.find(case, system, metric)
        return None if found is None else found.median

    def bar(self, text: str, value: float | None, bound: float, better: Better = "more") -> None:
        """Judge a value; nothing when it was not measured."""
        if value is not None:
            self.bars.append(Bar(text, value, bound, better))

    def ratio_bar(self, case: str, metric: Metric, ours: str, peer: str, bound: float) -> None:
        """How many times better we are than a peer, in the same case of the same run."""
        own, other = self.median(case, ours, metric), self.median(case, peer, metric)
        if own is not None and other is not None:
            self.bar(f"{case}: {metric.name}, times {peer}", advantage(metric, own, other), bound)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "scenario": self.scenario,
            "series": [
                {
                    "case": one.case,
                    "system": one.system,
                    "metric": one.metric.name,
                    "median": one.median,
                    "min": min(one.values),
                    "max": max(one.values),
                    "rounds": one.values,
                }
                for one in self.series
            ],
            "bars": [
                {"text": one.text, "value": one.value, "bound": one.bound, "better": one.better, "met": one.met}
                for one in self.bars
            ],
            "notes": self.notes,
        }


def advantage(metric: Metric, ours: float, other: float) -> float:
    """How many times better ``ours`` is."""
    return ours / other if metric.better == "more" else other / ours


def over_rounds(rounds: int, measures: Iterable[Callable[[], None]]) -> None:
    """Call every measure once a round; each round begins with another one."""
    order = list(measures)
    with rounds_shown(rounds * len(order)) as advance:
        for _ in range(rounds):
            for measure in order:
                measure()
                advance()
            order.append(order.pop(0))
