"""The types of `affinity.sync` are those that its classes have."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any, Final

import pytest

from affinity import sync
from affinity.sync.proxies import NOT_HERE
from affinity.sync.proxy import Proxy
from tests.sync.stubs import FILE, Stubs

FORMS: Final = {form: of for of, form in Proxy.forms.items() if of.__name__ == form.__name__}
STUBS: Final = {node.name: node for node in ast.parse(FILE.read_text()).body if isinstance(node, ast.ClassDef)}


def test_they_are_what_the_program_writes() -> None:
    assert FILE.read_text() == Stubs().text, "run: python -m tests.sync.stubs"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_the_sync_class_has_the_verbs_of_the_async_one(form: type) -> None:
    """At run time, and for type checkers."""
    verbs = public(FORMS[form]) - {"aclose"} - (NOT_HERE if form is sync.Client else set())
    own = {"Client": {"close"}, "SessionStore": {"on_loop"}}.get(form.__name__, set())
    inherited = {"close"} if issubclass(form, sync.Items) else set()
    assert public(form) - {"forms"} == verbs | own | inherited
    written = {each.name for each in STUBS[form.__name__].body if isinstance(each, ast.FunctionDef)}
    assert {name for name in written if not name.startswith("_")} - {"conversation_id"} == verbs | own


def test_each_name_has_a_sync_form_and_a_docstring() -> None:
    assert set(STUBS) == {each.__name__ for each in FORMS} | {"Items"} == set(sync.__all__) - {"open_store"}
    assert [name for name in sync.__all__ if not getattr(sync, name).__doc__] == []


def test_what_the_calls_return_has_no_async_methods() -> None:
    """A class that has some needs a sync form."""
    names = {
        (node.module, each.name)
        for node in ast.parse(FILE.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("affinity.")
        for each in node.names
        if each.asname is None
    }
    values = {name: getattr(importlib.import_module(module), name) for module, name in names}
    assert {"Instance", "Reply"} < set(values)
    found = {name: [each for each in public(value) if is_async(value, each)] for name, value in values.items()}
    taken = {"PayloadCodec"}  # what an application gives
    assert {name: methods for name, methods in found.items() if methods and name not in taken} == {}


def is_async(value: object, name: str) -> bool:
    return inspect.isclass(value) and inspect.iscoroutinefunction(getattr(value, name, None))


def public(value: Any) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}
