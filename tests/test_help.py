"""What `help` shows of public names: the words of fields, and names that are there."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import inspect
import pydoc
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

import affinity
import affinity.agent
import affinity.audit
import affinity.client
import affinity.conversation
import affinity.flow
import affinity.schedules
import affinity.session
import affinity.sync
import affinity.testing
from affinity.conversation.events import JournalEvent
from affinity.field_words import show_in_help, words_of
from tests.support.extras import MODULES, needs

pytestmark = needs(*MODULES)  # pages and examples speak of all of them

PLACES = (
    affinity,
    affinity.client,
    affinity.conversation,
    affinity.flow,
    affinity.schedules,
    affinity.audit,
    affinity.session,
    affinity.agent,
    affinity.testing,
)
PUBLIC = {f"{module.__name__}.{name}": getattr(module, name) for module in PLACES for name in module.__all__}
BY_LAST_NAME = {**vars(affinity.errors), **{name.rpartition(".")[2]: value for name, value in PUBLIC.items()}}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}


def one_line(text: str | None) -> str:
    return " ".join((text or "").replace("|", " ").split())


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_help_has_the_words_of_fields(cls: type) -> None:
    shown = one_line(pydoc.plain(pydoc.render_doc(cls)))
    words = words_of(cls).items()
    assert [name for name, text in words if f"{name}: {one_line(text)}" not in shown] == []


def test_each_option_of_a_worker_has_words() -> None:
    assert words_of(affinity.RuntimeOptions).keys() >= affinity.RuntimeOptions.model_fields.keys()
    assert one_line(inspect.getdoc(affinity.RuntimeOptions)).count(": ") > len(affinity.RuntimeOptions.model_fields)


def test_a_schema_does_not_depend_on_help() -> None:
    """Whether or not a class was taken from the facade, which completes its docstring."""

    class Told(JournalEvent):
        """Something."""

        kind: str = "told"

    def schema() -> Any:
        return TypeAdapter(Told).json_schema()

    before = schema()
    show_in_help(Told)
    assert inspect.getdoc(Told) == "Something.\n\nAttributes:\n    kind"
    assert schema() == before
    assert before["description"] == "Something."


def documented() -> Iterator[tuple[str, Callable[[], str | None], type | None]]:
    """What gives the docstrings of public functions, classes, methods and properties, each with its class."""
    for name, value in PUBLIC.items():
        if inspect.isroutine(value):
            yield name, functools.partial(inspect.getdoc, value), None
    for name, cls in CLASSES.items():
        yield name, functools.partial(inspect.getdoc, cls), cls
        for member in dir(cls):
            found = inspect.getattr_static(cls, member)
            function: Any = getattr(found, "fget", None) or getattr(found, "__func__", found)
            is_ours = inspect.isroutine(function) and str(getattr(function, "__module__", "")).startswith("affinity")
            if is_ours and (member == "__init__" or not member.startswith("_")):
                yield f"{name}.{member}", functools.partial(getattr, function, "__doc__"), cls


def found_at(path: list[str]) -> Any:
    """What a public path leads to."""
    return functools.reduce(getattr, path, affinity)


def exists(path: list[str]) -> bool:
    """Whether the package has it: modules are imported as far as there are any."""
    for n in range(1, len(path) + 1):
        try:
            found_at(path[:n])
        except AttributeError:
            try:
                importlib.import_module(".".join(["affinity", *path[:n]]))
            except ModuleNotFoundError:
                return False
    return True


def is_there(name: str, within: type | None) -> bool:
    """Whether a name in a docstring of a class is public, or names a module and what is in it."""
    first, *rest = parts = name.removeprefix("affinity.").split(".")
    if not rest and (hasattr(builtins, first) or (within is not None and has_member(within, first))):
        return True
    if not name.startswith("affinity.") and first in BY_LAST_NAME:
        return not rest or has_member(BY_LAST_NAME[first], *rest)
    if first == "affinity_conformance":
        return importlib.util.find_spec(name) is not None
    if first in {"asyncio", "pydantic"}:
        return hasattr(importlib.import_module(first), *rest)
    return exists(parts) or (len(parts) > 1 and exists(parts[:-1]) and has_member(found_at(parts[:-1]), parts[-1]))


def has_member(cls: Any, name: str, *_: str) -> bool:
    """Whether objects of a class have it; an attribute without a default is in the text of the class only."""
    own = [each for each in getattr(cls, "__mro__", ()) if each.__module__.startswith("affinity")]
    return hasattr(cls, name) or any(
        re.search(rf"^\s+(self\.)?{name}\b *[:=]", inspect.getsource(each), re.M) for each in own
    )


@pytest.mark.parametrize(("where", "docstring", "within"), [pytest.param(*each, id=each[0]) for each in documented()])
def test_names_in_docstrings_are_there(where: str, docstring: Callable[[], str | None], within: type | None) -> None:
    """In single backquotes each name, and everywhere one that begins with the package."""
    text = docstring() or ""
    named = re.findall(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)*)`(?!`)", text)
    named += re.findall(r"(?<![\w/`])(affinity(?:\.[A-Za-z_]\w*)+)(?!\.?[\w/`])", text)
    assert [name for name in named if not is_there(name, within)] == [], where
