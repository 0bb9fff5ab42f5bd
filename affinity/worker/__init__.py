"""The worker: where orchestration and provider meet."""

from affinity.worker.options import RuntimeOptions

__all__ = ["RuntimeOptions"]
