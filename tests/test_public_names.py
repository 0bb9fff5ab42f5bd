"""Public names are listed and documented, and no others are listed."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import pytest

import affinity
from affinity import errors
from tests.support.extras import MODULES, needs
from tests.support.public_names import FOR_APPLICATIONS, NOT_INSTALLED, PUBLIC, WITHOUT_LIST

pytestmark = needs(*MODULES)  # pages and examples speak of all of them

ROOT: Final = Path(__file__).parent.parent

INTERNAL: Final = frozenset(
    {
        "affinity.cli",
        "affinity.console.pages",
        "affinity.payloads",
        "affinity.provider.postgres",
        "affinity.provider.sqlite",
        "affinity.testing.env",
    }
)
"""Packages that export names to their neighbours alone."""

APPLICATIONS: Final = (
    "affinity",
    "affinity.audit",
    "affinity.blobs",
    "affinity.client",
    "affinity.conversation",
    "affinity.effects",
    "affinity.flow",
    "affinity.schedules",
    "affinity.session",
    "affinity.trends",
)
"""Modules whose signatures name public types only."""

NOT_PUBLIC: Final = {
    "CallKind": "literals: compare the words",
    "CallOperation": "literals: compare the words",
    "HasClients": "a protocol that workers fulfil",
    "LeftOut": "literals: pass the words",
    "InstanceValues": "what `ctx.values` is",
    "NotedWait": "made by a handle, for its streams",
    "ActivityDefaults": "of a property that futures read",
    "ActivityOptions": "the keyword arguments of a call",
    "CallContext": "a protocol that ToolContext fulfils",
    "OnceWork": "of constructors that only `once` calls",
    "ActivityScope": "a protocol that ActivityContext fulfils",
    "AuditCalls": "a base of Client",
    "AuditConditions": "the keyword arguments of a call",
    "LimitBounds": "the keyword arguments of a call",
    "Prefetch": "of activities that only guests register",
    "ResourceStore": "of a constructor that only stores call",
    "RetryingCall": "of a constructor that only stores call",
    "TrendKind": "literals: pass the words",
    "StreamPart": "of a constructor that only wakes call",
    "StreamTarget": "of a constructor that only wakes call",
    "RegisteredCalls": "of a constructor that only `Client` calls",
    "Budget": "what `Wake.budget` returns",
    "StepCount": "of a constructor that only wakes call",
    "CallOptions": "the keyword arguments of a call",
    "Codec": "a definition's; given to futures and handles by the code that makes them",
    "ConversationCalls": "the part of Client for conversations",
    "ConversationConditions": "the keyword arguments of a call",
    "ConversationKind": "of a constructor that only `Conversations` calls",
    "Endings": "of a constructor that only wakes call",
    "EndOutcome": "three words",
    "Engine": "two words",
    "Entry": "of a constructor that only `ConversationHandle` calls",
    "Description": "the keyword arguments of a call",
    "Declaration": "of a property that workers read",
    "HasLimitUse": "a protocol that Limit and LimitKey fulfil",
    "KernelApp": "the base of App",
    "KernelClient": "the base of Client",
    "KernelOptions": "the base of RuntimeOptions",
    "Destroyable": "a protocol that Resource fulfils",
    "EventTypes": "of constructors that only conversations call",
    "InstanceConditions": "the keyword arguments of a call",
    "InstanceSelection": "the keyword arguments of a call",
    "JournalIdentity": "of a constructor that only `ConversationHandle` calls",
    "Journals": "the journals of a client's database, for conversations",
    "LimitBy": "what `Limit.by` returns, for `Conversations`",
    "LineageState": "a protocol that `Conversations` fulfils",
    "MadeBy": "the keyword arguments of a call",
    "MoveConditions": "the keyword arguments of a call",
    "NewInstanceOptions": "the keyword arguments of a call",
    "OptionDescription": "how `affinity worker --help` and the documentation show an option",
    "PageReader": "of a constructor that only `ConversationHandle` calls",
    "Repeat": "two words",
    "RequestConditions": "the keyword arguments of a call",
    "RequestFilter": "of a constructor that only `Client` calls",
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
    "WaitNotes": "the notes of waits in a worker's database, for clients",
    "WakeParts": "of a constructor that only workers call",
    "WakeSteps": "of a constructor that only wakes call",
}
"""Types of affinity in public signatures that no application names, and why."""


def test_the_facade_lists_exactly_what_it_has() -> None:
    """For type checkers it imports all names; they are there at run time when they are used."""
    imports = ast.walk(ast.parse(Path(affinity.__file__).read_text()))
    froms = [node for node in imports if isinstance(node, ast.ImportFrom) and node.module != "affinity"]
    typed = {name.name: node.module for node in froms for name in node.names}
    assert typed.keys() == set(affinity.__all__)
    values = {name: getattr(affinity, name) for name in affinity.__all__}
    assert {name: typed[name] if is_alias(value) else value.__module__ for name, value in values.items()} == typed
    found = {name for name, value in vars(affinity).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert found == set(affinity.__all__)
    assert {*affinity.__all__, "errors", "telemetry", "client"} < {*dir(affinity)}
    with pytest.raises(AttributeError, match="no attribute 'Aktivity'"):
        affinity.Aktivity  # type: ignore[attr-defined]  # noqa: B018


def test_the_facade_is_small() -> None:
    assert len(affinity.__all__) <= 60


def test_each_package_that_exports_names_is_listed_as_public() -> None:
    """Or is internal."""
    roots = (ROOT / "affinity", ROOT / "conformance" / "affinity_conformance")
    found = {module for root in roots for module, text in modules_of(root) if "\n__all__" in text}
    internal = {module for module in found if any(f"{module}.".startswith(f"{each}.") for each in INTERNAL)}
    assert found - internal == PUBLIC.keys() | NOT_INSTALLED.keys()
    assert INTERNAL - found == set()


def modules_of(package: Path) -> Iterator[tuple[str, str]]:
    """The modules of a package, each with its text."""
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path.read_text()


def test_each_public_name_has_one_place() -> None:
    """A name of `affinity.sync` is the sync form of the name that is public elsewhere: another object."""
    names = Counter(name for module, names in PUBLIC.items() if module != "affinity.sync" for name in names)
    assert [name for name, places in names.items() if places > 1] == []
    assert [name for name in names if hasattr(errors, name)] == []
    values = [getattr(importlib.import_module(module), name) for module, names in PUBLIC.items() for name in names]
    places = Counter(id(value) for value in values if inspect.isclass(value) or inspect.isroutine(value))
    assert [value for value in values if places[id(value)] > 1] == []


@pytest.mark.parametrize("name", ["UserMessage", "Page", "SessionMetadata", "WorkerInfo", "UnknownInstance", "Env"])
def test_a_name_that_is_elsewhere_is_an_error_that_says_where(name: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(affinity, name)
    place = re.findall(r"`from ([\w.]+) import (\w+)`", str(raised.value))
    assert [(module, found) for module, found in place if hasattr(importlib.import_module(module), found)] == place
    assert [found for _, found in place] == [name]


def test_every_public_name_has_a_docstring() -> None:
    values = {
        name: getattr(importlib.import_module(module), name) for module in APPLICATIONS for name in PUBLIC[module]
    }
    assert [name for name, value in values.items() if not is_alias(value) and not inspect.getdoc(value)] == []


def test_what_public_functions_take_and_return_is_public() -> None:
    """Or an error of `affinity.errors`, or one of the few that no application names."""
    public = [(module, name) for module in APPLICATIONS for name in PUBLIC[module]]
    used = {name: where for place in public for name, where in types_used(*place)}
    errors_used = {name for name in used if hasattr(errors, name)}
    assert used.keys() - set().union(*PUBLIC.values()) - errors_used == NOT_PUBLIC.keys(), used


def test_types_of_every_kind_are_found() -> None:
    """Of a class, of a method, of a property, and one that is an alias."""
    names = ("Client", "Instance", "App", "RetryPolicy")
    used = {name for public in names for name, _ in types_used("affinity", public)}
    assert used >= {"Pages", "Failure", "ActivityDefinition", "RetryStrategy"}


def types_used(module: str, public: str) -> Iterator[tuple[str, str]]:
    """The classes of affinity, and the aliases of literals, in the signatures of a public name; each with its place."""
    for where, annotated, scope in annotated_of(getattr(importlib.import_module(module), public)):
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
    """Each public name once, below its place, and nothing else. A provider's types and the suites have other pages."""
    page = (ROOT / "docs" / "learn" / "names.md").read_text()
    sections = re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    elsewhere = {each for each in FOR_APPLICATIONS if ".contract" in each or "conformance" in each}
    assert {module for module, _ in sections} == FOR_APPLICATIONS - elsewhere | NOT_INSTALLED.keys()
    public = {**PUBLIC, **NOT_INSTALLED}
    for module, text in sections:
        table = [line for line in text.splitlines() if line.startswith("|")]
        assert sorted(re.findall(r"`(\w+)`", "\n".join(table))) == sorted(public[module]), module


def test_what_pages_and_examples_import_is_public() -> None:
    """By the one place of each name."""
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py"), ROOT / "README.md"]
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    used = {
        found: name
        for name, text in texts.items()
        for found in re.findall(r"(?:from|import) (affinity(?:_conformance)?\.[.\w]+)", text)
    }
    used.pop("affinity.demo.conversations")  # the conversations of the demo, for one example
    public = {**PUBLIC, **NOT_INSTALLED}
    assert {module: file for module, file in used.items() if module not in {*public, *WITHOUT_LIST}} == {}
    names = [(file, module, name) for file, text in texts.items() for module, name in imported(text)]
    assert len(names) > 100
    assert [each for each in names if each[1] in public and each[2] not in public[each[1]]] == []


def test_tests_import_public_names_from_their_place() -> None:
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py"), *(ROOT / "conformance").rglob("*.py")]
    files = [file for file in files if file.name != "test_imports.py"]  # it has programs as texts
    names = [(file.name, *each) for file in files for each in imported(file.read_text())]
    assert len(names) > 1_000
    assert [each for each in names if each[1] in FOR_APPLICATIONS and each[2] not in PUBLIC[each[1]]] == []


def imported(text: str) -> Iterator[tuple[str, str]]:
    """What a text imports of `affinity`, without its modules."""
    for module, names in re.findall(r"^ *from (affinity[.\w]*) import (\([^)]*\)|[\w, ]+)", text, re.MULTILINE):
        for name in re.findall(r"(\w+)(?: as \w+)?", names):
            path = ROOT.joinpath(*module.split("."), name)
            if not path.is_dir() and not path.with_suffix(".py").exists():
                yield module, name


TRACING: Final = (
    "tracing.py",
    "worker/tracing.py",
    "conversation/trace.py",
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

_LABELS: Final = {("label", "tenant"), ("label", "KEY")}

NO_CODE: Final = (
    {("activity",), ("db",), ("instance_id",), ("providers",), ("session_id",), ("sweeps",)}
    | _LABELS
    | {tuple(name.split(".")[1:]) for name in ATTRIBUTES}
)
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
    for module, names in NOT_INSTALLED.items():
        if ["affinity", *path][: module.count(".") + 1] == module.split("."):
            return {*path[module.count(".") :]} <= names
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
