"""Why an instance waits: the one place that knows, for errors, commands and logs.

`explain` reads the database when it is called, and only then. Layers above add the reasons of their instances by
`add_reasons`.
"""

from affinity.explain.reasons import Explainer, add_reasons, explain, time_text

__all__ = ["Explainer", "add_reasons", "explain", "time_text"]
