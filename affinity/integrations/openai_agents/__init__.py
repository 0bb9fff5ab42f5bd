"""Durable agents of the OpenAI Agents SDK: what models, tools and MCP servers have done is not done again.

``pip install 'affinity-workflows[openai-agents]'``. An agent runs in a conversation instead of by ``Runner.run``::

    async with openai_service(agent, "sqlite:///clerk.db") as clerk:
        print((await clerk.ask("chat-7", "Where is my order?")).text)

A run of several wakes is made again from its recorded steps: an approval is a request of the conversation, and the wake
that has the answer runs the agent up to there without calling a model or a tool.

=========  ======================================================================
recording  a run that records calls of models, tools and guardrails as steps
models     models whose calls are such steps
session    a session of the SDK in the state of a conversation
servers    MCP servers, whose lists of tools are steps
copies     copies of agents with these models, tools and guardrails
runs       a run of agents over several wakes, with requests for approvals
agents     conversations whose handler runs an agent
=========  ======================================================================
"""

try:
    import agents  # noqa: F401
except ImportError as error:
    raise ModuleNotFoundError(
        "affinity.integrations.openai_agents needs openai-agents 0.20 or later: "
        "pip install 'affinity-workflows[openai-agents]'",
        name="agents",
    ) from error

from affinity.field_words import show_all_in_help
from affinity.integrations.openai_agents.agents import OpenAIState, openai_conversations, openai_service
from affinity.integrations.openai_agents.models import DurableModel, DurableProvider
from affinity.integrations.openai_agents.recording import HasItems
from affinity.integrations.openai_agents.runs import OpenAIRun, openai_run
from affinity.integrations.openai_agents.session import StateSession

__all__ = [
    "DurableModel",
    "DurableProvider",
    "HasItems",
    "OpenAIRun",
    "OpenAIState",
    "StateSession",
    "openai_conversations",
    "openai_run",
    "openai_service",
]

show_all_in_help(globals())
