"""The worker: where orchestration and provider meet."""

import importlib
import typing

if typing.TYPE_CHECKING:
    from affinity.worker.options import KernelOptions as KernelOptions
    from affinity.worker.worker import KernelWorker as KernelWorker

_MODULES: typing.Final = {"KernelOptions": "options", "KernelWorker": "worker"}

if not typing.TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: a client imports no worker."""
        if name not in _MODULES:
            raise AttributeError(f"module 'affinity.worker' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"affinity.worker.{_MODULES[name]}"), name)
        return value
