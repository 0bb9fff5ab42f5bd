"""Build the API reference from the docstrings: ``python docs/reference.py FOLDER``. A warning is an error."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc

MODULES = [
    "affinity",
    "affinity.errors",
    "affinity.client",
    "affinity.client.administration",  # the base of `Client`, and the base of that:
    "affinity.client.inspection",
    "affinity.conversation",
    "affinity.session",
    "affinity.records",
    "affinity.telemetry",
    "affinity.provider.contract",
    "affinity.testing.conformance.providers",
    "affinity.testing.conformance.stores",
]


def build(folder: Path) -> None:
    """Write one page for each module, an index and a search."""
    warnings.simplefilter("error")
    # `typing.NamedTuple` makes the constructor in a namespace where the names of its annotations are unknown.
    warnings.filterwarnings("ignore", r"Error parsing type annotation ForwardRef.* for .*\.__init__\. Import of ")
    pdoc.render.configure(docformat="google", show_source=False)
    pdoc.pdoc(*MODULES, output_directory=folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
