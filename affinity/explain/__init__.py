"""Why an instance waits, and where a session has been: the one place that knows, for errors, commands and logs.

`explain` and `session_life` read the database when they are called, and only then. Layers above add the reasons of
their instances by `add_reasons`.
"""

from affinity.explain.life import SessionHolding, SessionLife, session_life
from affinity.explain.reasons import Explainer, add_reasons, explain, time_text
from affinity.explain.unserved import UnservedWork, unserved_work

__all__ = [
    "Explainer",
    "SessionHolding",
    "SessionLife",
    "UnservedWork",
    "add_reasons",
    "explain",
    "session_life",
    "time_text",
    "unserved_work",
]
