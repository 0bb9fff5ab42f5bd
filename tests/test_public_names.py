"""What is public is listed, documented, and nothing else."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import affinity
from affinity import errors


def test_the_facade_lists_exactly_what_it_has() -> None:
    found = {name for name, value in vars(affinity).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert found == set(affinity.__all__)
    assert not any(isinstance(getattr(affinity, name), ModuleType) for name in affinity.__all__)


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in affinity.__all__ if not inspect.getdoc(getattr(affinity, name))] == []


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
