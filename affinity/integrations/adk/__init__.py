"""Google's ADK on affinity: sessions with one writer.

Needs ``pip install "affinity-workflows[adk]"``.

===============  =======================================================================
session_service  `AffinitySessionService`: sessions in tables of their own
rows             the reads and writes of these sessions
===============  =======================================================================
"""

try:
    import google.adk  # noqa: F401
except ImportError as error:
    raise ModuleNotFoundError(
        "affinity.integrations.adk needs google-adk 2.10 or later: pip install 'affinity-workflows[adk]'",
        name="google.adk",
    ) from error

from affinity.field_words import show_all_in_help
from affinity.integrations.adk.session_service import AffinitySessionService, StaleSession

__all__ = ["AffinitySessionService", "StaleSession"]

show_all_in_help(globals())
