"""Writes the types of `affinity.sync`: ``python -m tests.sync.stubs``.

The classes there are proxies that are made at run time. Their types are the signatures of the async classes, without
``async``: read from the source, since the annotations of a running program are no longer what was written.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from affinity import sync
from affinity.sync.proxies import NOT_HERE
from affinity.sync.proxy import Items, Proxy

FILE: Final = Path(sync.__file__).with_suffix(".pyi")

BUILTINS: Final = frozenset(vars(builtins))
RENAMED: Final = {"AsyncIterator": "Items", "KernelClient": "Client", "ConversationCalls": "Client"}
TYPE_ARGUMENTS: Final = {"ConversationHandle": {"M": "ConversationHandle"}}
"""Of base classes, by class: the type variable, and what it stands for."""

OF_THE_KIND: Final = {"conversation": ("Connectable[AsyncClient, Any]", "ConversationHandle")}
"""Methods whose result is of the type that an argument names: of this argument, and the result."""

WIDTH: Final = 120
HEADER: Final = '''"""The types of `affinity.sync`. Written by ``python -m tests.sync.stubs``."""
'''


class Definition(NamedTuple):
    """A function, or a field, as it is written in a class of a module."""

    module: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign


@cache
def _module(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(name)))


def _class_of(cls: type) -> ast.ClassDef:
    found = (each for each in ast.walk(_module(cls.__module__)) if isinstance(each, ast.ClassDef))
    return next(each for each in found if each.name == cls.__name__)


def _definitions(cls: type, public: frozenset[str]) -> dict[str, list[Definition]]:
    """What a class and its bases define, by name; a function with its overloads."""
    found: dict[str, list[Definition]] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("affinity."):
            own: dict[str, list[Definition]] = {}
            for name, node in _members(_class_of(base)):
                if name in public or not name.startswith("_"):
                    own.setdefault(name, []).append(Definition(base.__module__, node))
            found = {**own, **found}
    return found


def _members(cls: ast.ClassDef) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign]]:
    for node in cls.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
            if node.name == "__init__":
                yield from _attributes(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


def _attributes(init: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ast.AnnAssign]]:
    """The public attributes that are arguments of the constructor."""
    types = {each.arg: each.annotation for each in init.args.args}
    for node in ast.walk(init):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            annotation = types.get(node.value.id) if isinstance(node.value, ast.Name) else None
            if annotation is not None:
                name = node.targets[0].attr
                yield name, ast.AnnAssign(ast.Name(name), annotation, None, 1)


class Stubs:
    """The text of the file."""

    def __init__(self) -> None:
        self._local = {*sync.__all__}
        self._imports: dict[str, set[str]] = {
            "collections.abc": {"Iterator"},
            "contextlib": {"AbstractContextManager"},
            "typing": {"Any", "Generic", "TypeVar"},
            "affinity.composed.client": {"Client as AsyncClient"},
        }
        self._variables: set[str] = {"T"}
        forms = {form: of for of, form in Proxy.forms.items() if form.__name__ == of.__name__}
        classes = [self._items(), *(self._class(of, form) for form, of in forms.items())]
        function = "def open_store(url: str) -> AbstractContextManager[SessionStore]: ...\n"
        variables = "".join(f'{each} = TypeVar("{each}")\n' for each in sorted(self._variables))
        names = "__all__ = [\n" + "".join(f'    "{each}",\n' for each in sync.__all__) + "]\n"
        self.text = "\n".join([HEADER, "".join(self._import_lines()), names, variables, *classes, function])

    def _import_lines(self) -> Iterator[str]:
        for module, names in sorted(self._imports.items()):
            line = f"from {module} import {', '.join(sorted(names))}"
            if len(line) > WIDTH:
                line = f"from {module} import (\n" + "".join(f"    {each},\n" for each in sorted(names)) + ")"
            yield f"{line}\n"

    def _items(self) -> str:
        own = _definitions(Items, frozenset({"__enter__", "__exit__"}))
        wanted = {name: own[name] for name in ("close", "__enter__", "__exit__")}
        body = [line for name, found in wanted.items() for line in self._member("Items", name, found)]
        return "\n".join(["class Items(Iterator[T]):", "    def __next__(self) -> T: ...", *body, ""])

    def _class(self, of: type, form: type) -> str:
        name = form.__name__
        own = _definitions(form, frozenset({"__init__", "__enter__", "__exit__"})) if name == "Client" else {}
        if name == "SessionStore":
            own = {"on_loop": _definitions(form, frozenset())["on_loop"]}
        members = {**_definitions(of, frozenset()), **own}
        items = [each for each in _class_of(of).bases if ast.unparse(each).startswith("AsyncIterator")]
        unwanted = {"forms", "aclose", *(NOT_HERE if name == "Client" else ())}
        body = [
            line
            for member, found in members.items()
            if member not in unwanted
            for line in self._member(name, member, found)
        ]
        base = ""
        if items:
            base = f"({self._type(of.__module__, items[0], {})})"
        elif any(ast.unparse(each).startswith("Generic") for each in _class_of(of).bases):
            (parameter,) = of.__parameters__  # type: ignore[attr-defined]
            base = f"(Generic[{parameter.__name__}])"
            self._variables.add(parameter.__name__)
        return "\n".join([f"class {name}{base}:", *(body or ["    pass"]), ""])

    def _member(self, cls: str, name: str, found: list[Definition]) -> Iterator[str]:
        is_overload = len(found) > 1
        for module, node in found[:-1] if is_overload else found:
            if isinstance(node, ast.AnnAssign):
                yield "    @property"
                yield f"    def {name}(self) -> {self._type(module, node.annotation, {})}: ..."
                continue
            if is_overload:
                self._imports["typing"].add("overload")
                yield "    @overload"
            if any(ast.unparse(each) == "property" for each in node.decorator_list):
                yield "    @property"
            yield self._function(cls, module, node)

    def _function(self, cls: str, module: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        arguments = TYPE_ARGUMENTS.get(cls, {})
        parameters = [each.strip() for each in self._parameters(module, node, arguments)]
        assert node.returns is not None, node.name
        result = self._type(module, node.returns, arguments)
        if node.name in OF_THE_KIND:
            given, result = OF_THE_KIND[node.name]
            parameters[1] = f"{parameters[1].partition(':')[0]}: {given}"
        line = f"    def {node.name}({', '.join(parameters)}) -> {result}: ..."
        if len(line) <= WIDTH:
            return line
        inner = f"        {', '.join(parameters)}"
        if len(inner) > WIDTH:
            inner = "\n".join(f"        {each}," for each in parameters)
        return f"    def {node.name}(\n{inner}\n    ) -> {result}: ..."

    def _parameters(
        self, module: str, node: ast.FunctionDef | ast.AsyncFunctionDef, arguments: dict[str, str]
    ) -> Iterator[str]:
        given = node.args
        assert not given.posonlyargs, node.name
        first_default = len(given.args) - len(given.defaults)
        for n, each in enumerate(given.args):
            yield self._parameter(module, each, arguments, has_default=n >= first_default)
        if given.kwonlyargs:
            yield "*"
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            yield self._parameter(module, each, arguments, has_default=default is not None)
        if given.kwarg is not None:
            yield "**" + self._parameter(module, given.kwarg, arguments, has_default=False)

    def _parameter(self, module: str, node: ast.arg, arguments: dict[str, str], *, has_default: bool) -> str:
        if node.annotation is None:
            return node.arg
        text = f"{node.arg}: {self._type(module, node.annotation, arguments)}"
        return f"{text} = ..." if has_default else text

    def _type(self, module: str, node: ast.expr, arguments: dict[str, str]) -> str:
        """The annotation in the file, which imports what it names."""
        written = ast.parse(ast.unparse(node), mode="eval").body
        for each in ast.walk(written):
            if isinstance(each, ast.Name):
                each.id = arguments.get(each.id) or RENAMED.get(each.id, each.id)
                self._name(module, each.id)
        return ast.unparse(written).replace("'", '"')  # releases of Python differ in it

    def _name(self, module: str, name: str) -> None:
        if name in self._local or name in BUILTINS:
            return
        value = getattr(importlib.import_module(module), name, None)
        if type(value).__name__ == "TypeVar":
            self._variables.add(name)
            return
        origin, original = _origin(module, name)
        self._imports.setdefault(origin, set()).add(name if original == name else f"{original} as {name}")


def _origin(module: str, name: str) -> tuple[str, str]:
    """The module that a name comes from, and its name there."""
    for node in ast.walk(_module(module)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for each in node.names:
                if (each.asname or each.name) == name:
                    return node.module, each.name
    return module, name


if __name__ == "__main__":
    FILE.write_text(Stubs().text)
