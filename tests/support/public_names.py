"""The public modules, as the page on versions lists them, and their names."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.extras import MODULES, REQUIRED

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
        if REQUIRED or not module.startswith("affinity.integrations.") or error.name not in MODULES:
            raise
        return False
    return True


FOR_APPLICATIONS: Final = frozenset(filter(_is_installed, re.findall(r"`(affinity[.\w]*)`", _ROWS[0]))) - WITHOUT_LIST

FOR_EXTENSIONS: Final = frozenset(re.findall(r"`(affinity[.\w]*)`", _ROWS[1])) - FOR_APPLICATIONS - {"affinity.agent"}

PUBLIC: Final[Mapping[str, frozenset[str]]] = {
    module: frozenset(importlib.import_module(module).__all__) for module in sorted(FOR_APPLICATIONS | FOR_EXTENSIONS)
}
