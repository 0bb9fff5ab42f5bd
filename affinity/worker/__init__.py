"""The worker: where orchestration and provider meet."""

from affinity.worker.options import RuntimeOptions
from affinity.worker.worker import Worker

__all__ = ["RuntimeOptions", "Worker"]
