"""For tests of applications: `Env`, with virtual time, and `crash_matrix`. For tests of providers and stores: the
conformance suites, which need pytest.
"""

from affinity.testing.crashes import CrashFailure, CrashMatrix, CrashMode, CrashPoint, crash_matrix
from affinity.testing.env import Env

__all__ = ["CrashFailure", "CrashMatrix", "CrashMode", "CrashPoint", "Env", "crash_matrix"]
