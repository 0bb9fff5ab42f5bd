"""For tests of applications: `Env`, with virtual time, `crash_matrix`, and `replay`, of a history against the code.

The suites for providers and session stores are another distribution, `affinity-conformance`.
"""

from affinity.field_words import show_all_in_help
from affinity.testing.crashes import CrashFailure, CrashMatrix, CrashMode, CrashPoint, crash_matrix
from affinity.testing.env import Env
from affinity.testing.histories import ReplayedExecution, ReplaySelection, replay_database, replay_export
from affinity.testing.replaying import replay

__all__ = [
    "CrashFailure",
    "CrashMatrix",
    "CrashMode",
    "CrashPoint",
    "Env",
    "ReplaySelection",
    "ReplayedExecution",
    "crash_matrix",
    "replay",
    "replay_database",
    "replay_export",
]

show_all_in_help(globals())
