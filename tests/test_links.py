"""The links `provider` and `worker` at the top of the repository."""

from __future__ import annotations

import pytest

from tests.support.worker_processes import ROOT


@pytest.mark.parametrize("name", ["provider", "worker"])
def test_a_link_leads_into_the_package(name: str) -> None:
    """For readers who look for it there; relative, so that it holds in each checkout."""
    link = ROOT / name
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == (ROOT / "affinity" / name).resolve()
    assert (link / "__init__.py").is_file()
