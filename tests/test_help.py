"""What `help` shows of public names: the words of fields, and names that are there."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import pytest
from pydantic import TypeAdapter

import affinity
import affinity.agent
import affinity.testing
from affinity.conversation.events import JournalEvent
from affinity.field_words import show_in_help, words_of

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (affinity, affinity.agent, affinity.testing)
    for name in module.__all__
}
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
