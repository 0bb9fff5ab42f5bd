"""The words of fields and attributes, for `help`.

They are written once, in the source: as a docstring below the attribute, or as a comment beside it. Neither is there at
run time, so the docstring of a class that `show_in_help` was called for is completed from the source when it is read.
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

__all__ = [
    "show_all_in_help",
]

_WIDTH: Final = 100

_DOC: Final[Any] = vars(type)["__doc__"]

if TYPE_CHECKING:
    from pydantic._internal import _model_construction

    ModelType = _model_construction.ModelMetaclass
else:

    class ModelType(type(BaseModel)):  # of models: `pydoc` reads a docstring by way of the metaclass
        __doc__ = property(_DOC.__get__)


class DocWithFields:
    """The docstring of a class, with its fields."""

    def __init__(self, cls: type, words: str) -> None:
        self.words: str = words
        """What the class itself says."""
        self._cls = cls
        self._whole: str | None = None

    def __get__(self, instance: object, owner: type) -> str:
        """Read the source at the first call."""
        if self._whole is None:
            self._whole = "\n".join([inspect.cleandoc(self.words), *_section(self._cls)]).rstrip()
        return self._whole


def show_in_help(cls: type) -> None:
    """Complete the docstring of a class, unless it names its attributes itself."""
    words = vars(cls).get("__doc__")
    if isinstance(words, str) and "Attributes:" not in words:
        _DOC.__set__(cls, DocWithFields(cls, words))


def show_all_in_help(names: Mapping[str, Any]) -> None:
    """Call `show_in_help` for the classes of a module."""
    for value in names.values():
        if isinstance(value, type):
            show_in_help(value)


def words_of(cls: type) -> Mapping[str, str]:
    """The words of each attribute that has some, inherited ones too; none where there is no source."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("affinity."):
            found |= dict(_own_words(base))
    return {name: text for name, text in found.items() if not name.startswith(("_", "model_config"))}


def _own_words(cls: type) -> Iterator[tuple[str, str]]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # as of a frozen program
        return
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    comments = _comments(source)
    for field, below in _attributes(definition):
        words = _text(below) or comments.get(field.end_lineno or 0)
        if words:
            yield ast.unparse(field.target).removeprefix("self."), " ".join(words.split())


def _attributes(definition: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, ast.stmt | None]]:
    """The attributes that the class or its constructor declares, each with the statement below it."""
    constructor = [
        each.body for each in definition.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    ]
    for body in (definition.body, *constructor):
        for field, below in zip_longest(body, body[1:]):
            if isinstance(field, ast.AnnAssign) and (
                body is definition.body or isinstance(field.target, ast.Attribute)
            ):
                yield field, below


def _text(node: ast.stmt | None) -> str | None:
    """The text that a statement consists of, if it does."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return None


def _comments(source: str) -> Mapping[int, str]:
    """The comments that stand behind code, by line; not those for linters."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {each.start[0]: each for each in tokens if each.type == tokenize.COMMENT and each.line.strip()[0] != "#"}
    texts = {line: each.string.lstrip("# ").partition("# noqa")[0].strip() for line, each in found.items()}
    return {line: text for line, text in texts.items() if not text.startswith(("noqa", "type:"))}


def _field_names(cls: Any) -> list[str]:
    """The public fields of a dataclass, a pydantic model or a named tuple."""
    found = (getattr(cls, where, ()) for where in ("__dataclass_fields__", "__pydantic_fields__", "_fields"))
    return [name for names in found for name in names if not name.startswith("_")]


def _section(cls: type) -> Iterator[str]:
    words = words_of(cls)
    names = dict.fromkeys([*_field_names(cls), *words])
    yield "\nAttributes:" if names else ""
    for name in names:
        line = f"{name}: {words[name]}" if name in words else name
        yield textwrap.fill(line, _WIDTH, initial_indent="    ", subsequent_indent="        ")
