"""The tests that `statements.md` names for each promise of conversations exist."""

from __future__ import annotations

import re

from tests.support.worker_processes import ROOT

PAGE = ROOT / "tests" / "statements.md"


def test_each_promise_has_tests_that_exist() -> None:
    existing = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), flags=re.MULTILINE)
    }
    text = PAGE.read_text()
    rows = [line.rsplit("|", 2)[1] for line in text.splitlines() if line.startswith("| ") and "| Tests |" not in line]
    assert len(rows) > 80
    assert [row for row in rows if not re.search("`test_", row)] == []
    assert sorted(set(re.findall(r"`(test_\w+)`", text)) - existing) == []
