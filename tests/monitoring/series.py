"""Series of metrics in the notation of `promtool test rules`, and the selectors of expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""A name, and its labels by name."""

AGES: Final = (
    "affinity_oldest_waiting_seconds",
    "affinity_schedule_late_seconds",
    "affinity_limit_oldest_waiting_seconds",
)
"""Metrics that grow by a second each second of a fault: stretched in time, they grow by more."""

STALE: Final = "stale"
"""Of a series that is no longer there: from then on Prometheus has no value of it."""

_SELECTOR: Final = re.compile(r"\b(affinity[_:][\w:]+)(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_BY: Final = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


class Matcher(NamedTuple):
    """A condition on a label."""

    label: str
    operator: str
    value: str

    def accepts(self, value: str) -> bool:
        """Whether a label has a value that fits."""
        equal = bool(re.fullmatch(self.value, value)) if "~" in self.operator else self.value == value
        return equal is not self.operator.startswith("!")


class Selector(NamedTuple):
    """A metric that an expression names, and its conditions."""

    name: str
    matchers: tuple[Matcher, ...]

    def selects(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the series is one of these."""
        return name == self.name and all(one.accepts(labels.get(one.label, "")) for one in self.matchers)


def selectors(expression: str) -> list[Selector]:
    """The selectors of an expression of PromQL. Strings in it have no brace."""
    return [
        Selector(name, tuple(Matcher(*one) for one in _MATCHER.findall(conditions)))
        for name, conditions in _SELECTOR.findall(expression)
    ]


def grouping_labels(expression: str) -> set[str]:
    """The labels that the expression aggregates or joins by."""
    return {label.strip() for labels in _BY.findall(expression) for label in labels.split(",")}


def samples(text: str) -> Iterator[tuple[Series, float]]:
    """The samples of a scrape."""
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            yield (one.name, tuple(sorted(one.labels.items()))), one.value


def spell(series: Series) -> str:
    """As Prometheus writes it."""
    name, labels = series
    return name + "{" + ", ".join(f'{label}="{value}"' for label, value in labels) + "}"


def encode(values: Sequence[float | str | None]) -> str:
    """The values of a series to one decimal, with runs of equal ones as one word; None: no sample then."""
    words = list[str]()
    for value, run in groupby(round(one, 1) + 0.0 if isinstance(one, float) else one for one in values):
        times = len(list(run))
        if value is None:
            words.append(f"_x{times}")
        elif value == STALE:
            words += [STALE] * times
        else:
            words.append(f"{value:.10g}" + (f"+0x{times - 1}" if times > 1 else ""))
    return " ".join(words)


def stretch(series: str, values: str, times: int) -> str:
    """The values of a series whose samples are ``times`` as far apart as they were recorded."""
    return " ".join(_stretch(word, times) for word in values.split()) if series.startswith(AGES) else values


def _stretch(word: str, times: int) -> str:
    number, run, length = word.partition("+0x")
    return word if word == STALE or word.startswith("_") else f"{float(number) * times:.6g}{run}{length}"
