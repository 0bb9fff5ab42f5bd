"""What a process does that was forked for a web service."""

from __future__ import annotations

import os

from tests.support.worker_processes import ROOT, end_with_the_tests


def run_service(factory: str, url: str, port: int) -> None:
    """As ``AFFINITY_URL=url uvicorn --factory factory --port port`` does."""
    import uvicorn  # here: tests import this module for the name of the function

    end_with_the_tests()
    os.chdir(ROOT)
    os.environ["AFFINITY_URL"] = url
    uvicorn.run(factory, factory=True, port=port)
