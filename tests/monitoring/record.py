"""Record what a fleet exports under a fault: ``python -m tests.monitoring.record [FAULT…]`` writes `recorded/`.

Each takes a minute and needs a PostgreSQL of its own. Series that no rule selects are left out.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Final

import anyio

from affinity import migrate
from tests.monitoring.faults import FAULTS
from tests.monitoring.fleet import Recording, open_fleet
from tests.monitoring.rules import exported_selectors
from tests.monitoring.series import encode, spell
from tests.servers import old_and_new

FOLDER: Final = Path(__file__).parent / "recorded"
SECONDS: Final = 60
AT: Final = 15
"""Seconds of work before the fault."""


async def record(name: str) -> dict[str, str]:
    """The series that the workers export before and under the fault."""
    _, offer = old_and_new()
    fault = FAULTS[name]
    with offer.open() as server:
        url = server.url(server.create_database())
        await migrate(url)
        async with open_fleet(server, url, options=fault.options) as fleet:
            recording = Recording(fleet, exported_selectors())
            await recording.record(SECONDS, AT, fault.act)
            return {spell(one): encode(values) for one, values in sorted(recording.series(SECONDS).items())}


def write(name: str, series: dict[str, str]) -> None:
    """Write the file of a fault."""
    made = f"python -m tests.monitoring.record {name}: a sample each second, the fault at {AT} s"
    text = json.dumps({"fault": inspect.getdoc(FAULTS[name].act), "recorded": made, "series": series}, indent=0)
    (FOLDER / f"{name}.json").write_text(f"{text}\n")


def recorded(name: str) -> dict[str, str]:
    """The series of a fault."""
    series: dict[str, str] = json.loads((FOLDER / f"{name}.json").read_text())["series"]
    return series


if __name__ == "__main__":
    for wanted in sys.argv[1:] or FAULTS:
        write(wanted, anyio.run(record, wanted))
        print(wanted)
