"""How programs are drawn, and the smallest one that fails is found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import combinations
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as from_seed
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.programs.areas import AREAS
from tests.programs.faults import faults
from tests.programs.program import USER, Options, Program, Size, plain
from tests.programs.rollouts import ROLLOUTS

_SCRIPT: Final = """\
# From the root of the repository: PYTHONPATH=. python THIS_FILE [postgresql://...]
import asyncio
import sys

from tests.programs.run import run
{imports}
program = {program}
asyncio.run(run(program, *sys.argv[1:2]))
"""


def _options(size: Size) -> SearchStrategy[Options]:
    """Of large programs most have the defaults, with which a commit has turns of many instances."""
    usual = 5 if size == "large" else 1
    return st.builds(
        Options,
        max_sessions=st.sampled_from((*[100] * usual, 2, 1)),
        cached_instances=st.sampled_from((*[10_000] * usual, 0, 2)),
        concurrency=st.sampled_from((*[128] * usual, 4, 1)),
        tags=st.sampled_from((("gpu",), ("gpu",), ())),
    )


def programs(
    areas: Collection[str] = tuple(AREAS), *, suspends: bool = False, size: Size = "any"
) -> SearchStrategy[Program]:
    """Programs with parts of these areas, small ones with some of them; each with a rollout, or some of them."""
    parts: dict[str, SearchStrategy[Any]] = {name: AREAS[name].strategy(size) for name in areas}
    counts = range(1, len(parts) + 1) if size == "small" else [len(parts)]
    some = [dict(each) for count in counts for each in combinations(parts.items(), count)]
    return st.builds(
        Program,
        parts=st.one_of(*map(st.fixed_dictionaries, some)),
        workers=st.integers(1, 3),
        options=_options(size),
        faults=faults(size),
        rollout=ROLLOUTS if suspends else st.none() | ROLLOUTS,
        user=st.sampled_from(("", USER)),
        traced=st.booleans(),
    )


class Failed(Exception):
    """The smallest program that fails; the cause is what it has found."""

    def __init__(self, program: Program) -> None:
        super().__init__(text(program))
        self.program = program


def search(
    run: Callable[[Program], None],
    *,
    areas: Collection[str],
    count: int,
    seed: int,
    shrink: bool = True,
    suspends: bool = False,
    size: Size = "any",
) -> None:
    """Run so many programs; see `programs`.

    Raises:
        Failed: one fails.
    """
    found: list[tuple[Program, Exception]] = []  # the smallest one so far

    def judged(program: Program) -> None:
        try:
            run(program)
        except Exception as error:
            found[:] = [(program, error)]
            raise

    options = settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    try:
        from_seed(seed)(options(given(programs(areas, suspends=suspends, size=size))(judged)))()
    except Exception:
        if not found:
            raise
    if found:
        program, error = found[0]
        raise Failed(program) from error


def text(program: Program) -> str:
    """A program as text that runs it again."""
    names = defaultdict[str, set[str]](set)
    for each in _classes(program):
        names[each.__module__].add(each.__name__)
    lines = [f"from {module} import {', '.join(sorted(found))}\n" for module, found in sorted(names.items())]
    return _SCRIPT.format(imports="".join(lines), program=plain(program))


def _classes(value: Any) -> Iterator[type[Any]]:
    """Its classes, also of nested values."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for each in value:
            yield from _classes(each)
    elif is_dataclass(value):
        yield type(value)
        for field in fields(value):
            yield from _classes(getattr(value, field.name))
