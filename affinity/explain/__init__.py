"""Why an instance waits, where a session has been, what a drain moves: the one place that knows, for errors, commands,
pages and logs.

`explain` and `session_life` read the database when they are called, and only then. Layers above add the reasons of
their instances by `add_reasons`.
"""

from affinity.explain.drains import DrainPreview, DrainTarget, drain_preview
from affinity.explain.life import SessionHolding, SessionLife, session_life
from affinity.explain.reasons import Explainer, add_reasons, explain, time_text
from affinity.explain.unserved import UnservedWork, unserved_work

__all__ = [
    "DrainPreview",
    "DrainTarget",
    "Explainer",
    "SessionHolding",
    "SessionLife",
    "UnservedWork",
    "add_reasons",
    "drain_preview",
    "explain",
    "session_life",
    "time_text",
    "unserved_work",
]
