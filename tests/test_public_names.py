"""Public names are listed and documented, and no others are listed."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import pytest

import affinity
from affinity import errors

ROOT: Final = Path(__file__).parent.parent

NOT_PUBLIC: Final = {
    "LeftOut": "literals: pass the words",
    "NotedWait": "made by a handle, for its streams",
    "ActivityOptions": "the keyword arguments of a call",
    "ActivityScope": "a protocol that ActivityContext fulfils",
    "AuditConditions": "the keyword arguments of a call",
    "RegisteredCalls": "of a constructor that only `Client` calls",
    "CallOptions": "the keyword arguments of a call",
    "Codec": "a definition's; given to futures and handles by the code that makes them",
    "ConversationConditions": "the keyword arguments of a call",
    "ConversationKind": "of a constructor that only `Conversations` calls",
    "Endings": "of a constructor that only wakes call",
    "EndOutcome": "three words",
    "Entry": "of a constructor that only `ConversationHandle` calls",
    "Description": "the keyword arguments of a call",
    "Declaration": "of a property that workers read",
    "Destroyable": "a protocol that Resource fulfils",
    "EventTypes": "of constructors that only conversations call",
    "InstanceConditions": "the keyword arguments of a call",
    "JournalAccess": "the journals of a worker's database, for conversations",
    "JournalIdentity": "of a constructor that only `ConversationHandle` calls",
    "Journals": "the journals of a client's database, for conversations",
    "KernelApp": "the base of App",
    "KernelClient": "the base of Client",
    "LineageState": "a protocol that `Conversations` fulfils",
    "MadeBy": "the keyword arguments of a call",
    "MoveConditions": "the keyword arguments of a call",
    "NewInstanceOptions": "the keyword arguments of a call",
    "OpenOptions": "of a constructor that only `Sessions` calls",
    "OptionDescription": "how `affinity worker --help` and the documentation show an option",
    "OutcomeStatus": "three words",
    "PageReader": "of a constructor that only `ConversationHandle` calls",
    "Provider": "who writes one imports the contract, `affinity.provider.contract`, with all of its types",
    "Repeat": "two words",
    "RequestConditions": "the keyword arguments of a call",
    "RequestFilter": "of a constructor that only `Client` calls",
    "RunningCode": "what a section yields",
    "Runtime": "the parts of a running worker, for the tests of the worker",
    "ScheduleOptions": "the keyword arguments of a call",
    "ScheduleSpec": "of a property that workers read",
    "Scheduler": "the engine's; makes the context and the futures",
    "SessionContext": "a protocol that ActivityContext fulfils",
    "SessionsOptions": "the keyword arguments of a constructor",
    "StartOptions": "the keyword arguments of a call",
    "StoreOnLoop": "a protocol that `affinity.sync.SessionStore` fulfils",
    "StateSchema": "of a constructor that only `Sessions` calls",
    "TickOptions": "keyword arguments of a call",
    "UnitOfWork": "of a constructor that only `Sessions` calls",
    "WakeParts": "of a constructor that only workers call",
}
"""Types of affinity in public signatures that no application names, and why."""


def test_the_facade_lists_exactly_what_it_has() -> None:
    """For type checkers it imports all names; they are there at run time when they are used."""
    imports = ast.walk(ast.parse(Path(affinity.__file__).read_text()))
    froms = [node for node in imports if isinstance(node, ast.ImportFrom) and node.module != "affinity"]
    typed = {name.name for node in froms for name in node.names}
    assert typed == set(affinity.__all__)
    assert not any(isinstance(getattr(affinity, name), ModuleType) for name in affinity.__all__)
    found = {name for name, value in vars(affinity).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert found == set(affinity.__all__)
    assert {*affinity.__all__, "errors", "telemetry", "client"} < {*dir(affinity)}
    with pytest.raises(AttributeError, match="no attribute 'Aktivity'"):
        affinity.Aktivity  # type: ignore[attr-defined]  # noqa: B018


def test_every_public_name_has_a_docstring() -> None:
    values = {name: getattr(affinity, name) for name in affinity.__all__}
    assert [name for name, value in values.items() if not is_alias(value) and not inspect.getdoc(value)] == []


def test_what_public_functions_take_and_return_is_public() -> None:
    """Or an error of `affinity.errors`, or one of the few that no application names."""
    used = {name: where for public in affinity.__all__ for name, where in types_used(public)}
    errors_used = {name for name in used if hasattr(errors, name)}
    assert used.keys() - set(affinity.__all__) - errors_used == NOT_PUBLIC.keys(), used


def test_types_of_every_kind_are_found() -> None:
    """Of a class, of a method, of a property, and one that is an alias."""
    used = {name for public in ("Client", "Instance", "App", "RetryPolicy") for name, _ in types_used(public)}
    assert used >= {"Pages", "Failure", "ActivityDefinition", "RetryStrategy"}


def types_used(public: str) -> Iterator[tuple[str, str]]:
    """The classes of affinity, and the aliases of literals, in the signatures of a public name; each with its place."""
    for where, annotated, scope in annotated_of(getattr(affinity, public)):
        for parameter, annotation in getattr(annotated, "__annotations__", {}).items():
            if inspect.isclass(annotated) and parameter.startswith("_"):
                continue
            for node in ast.walk(ast.parse(str(annotation))):
                if isinstance(node, ast.Name) and is_ours(scope.get(node.id)):
                    yield node.id, f"{public}.{where}: {parameter}"


def annotated_of(value: Any) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """A function; or a class with its fields and its public methods and properties, inherited ones too."""
    if isinstance(value, FunctionType):
        yield "", value, value.__globals__
    if not inspect.isclass(value):
        return
    for base in value.__mro__:
        if base.__module__.startswith("affinity."):
            yield "", base, vars(importlib.import_module(base.__module__))
    for name in dir(value):
        function = _function(inspect.getattr_static(value, name))
        if function is not None and (not name.startswith("_") or name == "__init__"):
            for each in (function, *typing.get_overloads(function)):
                yield name, each, function.__globals__


def _function(member: Any) -> FunctionType | None:
    """Behind a method of any kind, or a property."""
    found: Any = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))
    return found if isinstance(found, FunctionType) and found.__module__.startswith("affinity.") else None


def is_ours(value: object) -> bool:
    return (inspect.isclass(value) and value.__module__.startswith("affinity")) or is_alias(value)


def is_alias(value: object) -> bool:
    return typing.get_origin(value) is typing.Literal


def test_the_documentation_names_what_is_public() -> None:
    """Each public name once, and nothing else."""
    page = (ROOT / "docs" / "learn" / "names.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert sorted(re.findall(r"`(\w+)`", "\n".join(table))) == sorted(affinity.__all__)


def test_what_pages_and_examples_import_from_is_public() -> None:
    """As the page on versions lists it. Of each listed package `__all__` says which names."""
    row = next(line for line in (ROOT / "docs/run/versions.md").read_text().splitlines() if "`__all__` lists" in line)
    listed = set(re.findall(r"`(affinity[.\w]*)`", row))
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py"), ROOT / "README.md"]
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    used = {
        found: name
        for name, text in texts.items()
        for found in re.findall(r"(?:from|import) (affinity(?:_conformance)?\.[.\w]+)", text)
    }
    used.pop("affinity.demo.conversations")  # the conversations of the demo, for one example
    assert {module: file for module, file in used.items() if module not in listed} == {}
    for module in listed - {"affinity.errors", "affinity.telemetry"}:
        assert importlib.import_module(module).__all__


TRACING: Final = (
    "tracing.py",
    "worker/tracing.py",
    "conversation/wake_span.py",
    "agent/loop.py",
    "agent/tool_calls.py",
)
ATTRIBUTES: Final = {
    name
    for module in TRACING
    for name in re.findall(r'"((?:affinity|messaging|gen_ai|error)\.[\w.]+)"', (ROOT / "affinity" / module).read_text())
}
"""Of spans, and the event of one."""

NO_CODE: Final = {("activity",), ("db",), ("instance_id",), ("providers",), ("session_id",), ("sweeps",)} | {
    tuple(name.split(".")[1:]) for name in ATTRIBUTES
}
"""A logger, a file, a group of entry points, a table, and attributes of log records and spans, after "affinity."."""

DOCUMENTS: Final = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_in_the_documentation_exist(document: Path) -> None:
    """``affinity.something`` in a text or an example is a public name, or in a module."""
    named = set(re.findall(r"\baffinity((?:\.[A-Za-z_]\w*)+)(?!\.?[\w/])", document.read_text()))
    paths = [name.split(".")[1:] for name in sorted(named)]
    assert [path for path in paths if tuple(path) not in NO_CODE and not exists(path)] == []


def test_each_attribute_of_a_span_is_in_the_documentation() -> None:
    named = re.findall(r"`([\w.]+)`", (ROOT / "docs" / "run" / "tracing.md").read_text())
    assert ATTRIBUTES - {*named} == set()
    assert {name for name in named if name.startswith(("messaging.", "gen_ai."))} <= ATTRIBUTES


def exists(path: list[str]) -> bool:
    """Whether the package has it: modules are imported as far as there are any."""
    value: Any = affinity
    for n, part in enumerate(path, 1):
        if not hasattr(value, part):
            try:
                importlib.import_module(".".join(["affinity", *path[:n]]))
            except ModuleNotFoundError:
                return False
        value = getattr(value, part)
    return True


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    """The docstring of `affinity.errors` shows every error below its base."""
    drawn = dict[str, int]()
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([│ ├└─]*)([A-Z]\w+)", line):
            drawn[found[2]] = len(found[1]) // 4
    classes = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
    depths = {name: _depth(value) for name, value in classes.items() if issubclass(value, errors.AffinityError)}
    assert drawn == depths


def _depth(error: type) -> int:
    return 0 if error is errors.AffinityError else 1 + _depth(error.__bases__[0])
