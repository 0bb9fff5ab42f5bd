"""Why an instance waits, where a session has been, what a drain moves: the one place that knows, for errors, commands,
pages and logs.

`explain` and `session_life` read the database when they are called, and only then. Layers above add the reasons of
their instances by `add_reasons`, and those of work that waits at a gate by `add_gate_reasons`.
"""

from affinity.explain.drains import DrainPreview as DrainPreview
from affinity.explain.drains import DrainTarget as DrainTarget
from affinity.explain.drains import drain_preview as drain_preview
from affinity.explain.life import SessionHolding as SessionHolding
from affinity.explain.life import SessionLife as SessionLife
from affinity.explain.life import session_life as session_life
from affinity.explain.reasons import Explainer as Explainer
from affinity.explain.reasons import Reason as Reason
from affinity.explain.reasons import add_gate_reasons as add_gate_reasons
from affinity.explain.reasons import add_reasons as add_reasons
from affinity.explain.reasons import explain as explain
from affinity.explain.unserved import UnservedWork as UnservedWork
from affinity.explain.unserved import unserved_work as unserved_work
from affinity.explain.words import counted as counted
from affinity.explain.words import duration as duration
from affinity.explain.words import time_text as time_text
