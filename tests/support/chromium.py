"""The browser of tests: Debian's chromium, or Google's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:  # a test is skipped, and this file is not, where it is not installed
    from playwright.sync_api import Browser

CHROMIUM: Final = shutil.which("chromium") or shutil.which("google-chrome")

MARKS: Final = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None and os.environ.get("AFFINITY_TESTS_BROWSER") != "required",
        reason="this machine has no program chromium, and no google-chrome",
    ),
]
"""The marks of a file of tests in a browser."""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright  # here: see above

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()
