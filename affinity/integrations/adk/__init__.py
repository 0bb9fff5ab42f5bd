"""Google's ADK on affinity: durable agents in conversations, and sessions with one writer.

``pip install 'affinity-workflows[adk]'``. An agent runs in a conversation instead of by a ``Runner``::

    async with adk_service(agent, "sqlite:///clerk.db") as clerk:
        print((await clerk.ask("chat-7", "Where is my order?")).text)

A run of several wakes is made again from its recorded steps: a confirmation is a request of the conversation, and the
wake that has the answer runs the agent up to there without calling a model or a tool.

===============  =======================================================================
recording        a run that records calls of models and tools as steps
models           models whose calls are such steps
copies           copies of agents with these models and tools
runs             a run of agents over several wakes, with requests for confirmations
agents           conversations whose handler runs an agent
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
from affinity.integrations.adk.agents import ADKState, adk_conversations, adk_service
from affinity.integrations.adk.models import DurableLlm
from affinity.integrations.adk.recording import HasEvents
from affinity.integrations.adk.runs import ADKResult, ADKRun, adk_run
from affinity.integrations.adk.session_service import AffinitySessionService, StaleSession

__all__ = [
    "ADKResult",
    "ADKRun",
    "ADKState",
    "AffinitySessionService",
    "DurableLlm",
    "HasEvents",
    "StaleSession",
    "adk_conversations",
    "adk_run",
    "adk_service",
]

show_all_in_help(globals())
