"""The files of both providers: the same names for the same jobs, and a line about each."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from affinity.conversation.store import postgres as postgres_store
from affinity.conversation.store import sqlite as sqlite_store
from affinity.provider import postgres, sqlite

ENGINES: Final = [postgres, sqlite, postgres_store, sqlite_store]

_LINE: Final = re.compile(r"^    (\w+)/?  +\S", re.MULTILINE)


def described(engine: ModuleType) -> tuple[list[str], list[str]]:
    """The files that the package describes: of both engines, and of this one alone."""
    both, _, own = (engine.__doc__ or "").partition("Files that only this engine has:")
    return _LINE.findall(both), _LINE.findall(own)


def there(engine: ModuleType, pattern: str) -> set[str]:
    """Names of files and folders of the package, without their suffixes."""
    return {path.stem for path in Path(str(engine.__file__)).parent.glob(pattern) if not path.stem.startswith("__")}


@pytest.mark.parametrize("engine", ENGINES)
def test_each_file_is_described_once(engine: ModuleType) -> None:
    names = [name for part in described(engine) for name in part]
    assert sorted(names) == sorted(there(engine, "*"))


@pytest.mark.parametrize(("engine", "other"), [(postgres, sqlite), (postgres_store, sqlite_store)])
def test_files_for_the_same_job_have_the_same_name(engine: ModuleType, other: ModuleType) -> None:
    common, own = described(engine)
    common_of_sqlite, own_of_sqlite = described(other)
    assert common == common_of_sqlite
    assert not {*own} & {*own_of_sqlite} - {"driver", "schema"}


@pytest.mark.parametrize("engine", ENGINES)
def test_statements_are_beside_the_code_that_runs_them(engine: ModuleType) -> None:
    assert there(engine, "*.sql") <= there(engine, "*.py")
