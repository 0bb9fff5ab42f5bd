"""The public modules, as the page on versions lists them, and their names."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.extras import ELSEWHERE, MODULES, REQUIRED

ROOT: Final = Path(__file__).parents[2]

WITHOUT_LIST: Final = frozenset({"affinity.errors", "affinity.telemetry"})
"""Public modules without ``__all__``: the page says which of their names are public."""

_ROWS: Final = [
    line for line in (ROOT / "docs" / "run" / "versions.md").read_text().splitlines() if "`__all__` lists" in line
]


def _is_installed(module: str) -> bool:
    """False: an integration, whose library is not installed here."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in ELSEWHERE and (
            REQUIRED or not module.startswith("affinity.integrations.") or error.name not in MODULES
        ):
            raise
        return False
    return True


def _names_in_source(module: str) -> frozenset[str]:
    """What `__all__` lists, read without an import."""
    text = (ROOT.joinpath(*module.split(".")) / "__init__.py").read_text()
    found = re.search(r"^__all__ = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    return frozenset(re.findall(r'"(\w+)"', found[1] if found else ""))


_LISTED: Final = frozenset(re.findall(r"`(affinity[.\w]*)`", _ROWS[0]))

FOR_APPLICATIONS: Final = frozenset(filter(_is_installed, _LISTED)) - WITHOUT_LIST

NOT_INSTALLED: Final[Mapping[str, frozenset[str]]] = {
    module: _names_in_source(module) for module in sorted(_LISTED - FOR_APPLICATIONS - WITHOUT_LIST)
}
"""Public modules whose library is not here, with their names."""

FOR_EXTENSIONS: Final = frozenset(re.findall(r"`(affinity[.\w]*)`", _ROWS[1])) - FOR_APPLICATIONS - {"affinity.agent"}

PUBLIC: Final[Mapping[str, frozenset[str]]] = {
    module: frozenset(importlib.import_module(module).__all__) for module in sorted(FOR_APPLICATIONS | FOR_EXTENSIONS)
}
