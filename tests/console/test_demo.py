"""``affinity demo --console``: a first user sees a worker die, and its sessions move."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest

from tests.support.worker_processes import PATIENCE, ROOT


@pytest.mark.slow
def test_the_demo_in_a_browser() -> None:
    """The run begins when the address is opened, and can be looked at until Ctrl-C; then its result is printed."""
    command = [sys.executable, "-m", "affinity", "demo", "--console", "--conversations", "8", "--workers", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:  # type: ignore[call-overload]
        try:
            address = urlsplit(_find(process, r"Open (\S+)"))
            with httpx.Client(base_url=f"http://{address.netloc}", timeout=PATIENCE) as http:
                assert http.get("/").status_code == 401
                assert http.get(f"{address.path}?{address.query}").status_code == 200
                _find(process, r"(The run is over)")
                page = http.get("/workers").text
                assert "lease expired" in page
                assert len(set(re.findall(r"demo-\w+-worker-\d", page))) == 2
                session = re.search(r"/session\?id=[\w-]+", http.get("/sessions").text)
                assert session is not None
                assert "<rect" in http.get(session[0]).text
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Every transcript is complete" in output


def _find(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError(f"the demo has ended without {pattern!r}")
