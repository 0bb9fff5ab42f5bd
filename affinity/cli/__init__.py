"""The command ``affinity``: a thin shell over the client and the worker."""

from affinity.cli.main import main

__all__ = ["main"]
