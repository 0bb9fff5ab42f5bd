"""A decorator above the one that registers a function is refused: workers would call the function without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import affinity
from affinity import Conversations
from affinity.errors import InvalidApp
from affinity.orchestration.definitions import definition_of

HEAD = """
import functools
import affinity

def audited(function):
    @functools.wraps(function)
    async def call(*args):
        return await function(*args)
    return call

app = affinity.App("decorated")
talk = affinity.Conversations(dict, kind="talk")
"""

REGISTERED = {
    "activity": "@app.activity\nasync def work(ctx: affinity.ActivityContext) -> str: return ''",
    "named activity": "@app.activity(name='other')\nasync def work(ctx: affinity.ActivityContext) -> str: return ''",
    "sync activity": "@app.activity\ndef work(ctx: affinity.ActivityContext) -> str: return ''",
    "orchestration": "@app.orchestration\nasync def work(ctx: affinity.OrchestrationContext) -> str: return ''",
    "handler": "@talk.on_wake\nasync def work(wake: affinity.Wake, state: dict) -> None: ...",
    "handler with options": "@talk.on_wake(timeout=5)\nasync def work(wake: affinity.Wake, state: dict) -> None: ...",
}


@pytest.fixture
def module() -> Iterator[ModuleType]:
    made = ModuleType("decorated_functions")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def run(module: ModuleType, source: str) -> affinity.App:
    exec(HEAD + source, module.__dict__)  # noqa: S102 -- what a module of an application has
    app: affinity.App = module.__dict__["app"]
    talk: Conversations[dict[str, object]] = module.__dict__["talk"]
    if talk._handler is not None:
        app.include(talk)
    return app


@pytest.mark.parametrize("source", REGISTERED.values(), ids=REGISTERED)
@pytest.mark.parametrize("above", ["@audited", "@audited\n@audited"], ids=["one", "two"])
def test_a_decorator_above_is_refused(module: ModuleType, source: str, above: str) -> None:
    """At the start of a worker, and where the function is used."""
    app = run(module, f"{above}\n{source}")
    with pytest.raises(InvalidApp, match=r"has a decorator above .* put it below"):
        app.check()
    if "talk" not in source:
        with pytest.raises(InvalidApp, match="has a decorator above"):
            definition_of(module.__dict__["work"])


@pytest.mark.parametrize("source", [REGISTERED[name] for name in REGISTERED if name != "sync activity"])
def test_a_decorator_below_runs(module: ModuleType, source: str) -> None:
    lines = source.splitlines()
    app = run(module, "\n".join([lines[0], "@audited", *lines[1:]]))
    app.check()
    if "talk" not in source:
        assert definition_of(module.__dict__["work"]) is not None


@pytest.mark.parametrize("source", REGISTERED.values(), ids=REGISTERED)
def test_functions_without_another_decorator_pass(module: ModuleType, source: str) -> None:
    run(module, source).check()


def test_a_function_in_a_function_is_checked_where_it_is_used(module: ModuleType) -> None:
    """Its module has no name for it."""
    body = "\n".join([f"    {line}" for line in ["@audited", *REGISTERED["activity"].splitlines(), "return work"]])
    source = f"def make():\n{body}\nwork = make()"
    app = run(module, source)
    app.check()
    with pytest.raises(InvalidApp, match="has a decorator above"):
        definition_of(module.__dict__["work"])
