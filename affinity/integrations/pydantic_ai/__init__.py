"""Durable agents of pydantic-ai: each model request, tool and MCP call is a step, which a crash does not repeat.

``pip install 'affinity-workflows[pydantic-ai]'``. An agent becomes durable by a capability, and by the conversation in
which it runs::

    agent = Agent("openai:gpt-5", name="clerk", capabilities=[AffinityDurability()])

    async with agent_service(agent, "sqlite:///clerk.db") as clerk:
        print((await clerk.ask("chat-7", "Where is my order?")).text)

==========  ==========================================================================================
durability  the capability of an agent: its operations are steps
runs        a run of an agent over several wakes: its steps, its stream, its part of the journal
requests    approvals, results of the client, and waits for an external event, as requests
agents      conversations whose handler runs an agent
store       pydantic-ai's conversations in the journal
==========  ==========================================================================================
"""

try:
    import pydantic_ai.external_events  # noqa: F401  (the newest part of the library that is needed)
except ImportError as error:
    raise ModuleNotFoundError(
        "affinity.integrations.pydantic_ai needs pydantic-ai-slim 2.68 or later: "
        "pip install 'affinity-workflows[pydantic-ai]'",
        name="pydantic_ai",
    ) from error

from affinity.field_words import show_all_in_help
from affinity.integrations.pydantic_ai.agents import AgentState, agent_conversations, agent_service
from affinity.integrations.pydantic_ai.durability import AffinityDurability
from affinity.integrations.pydantic_ai.requests import resolve_token
from affinity.integrations.pydantic_ai.runs import AgentRun, agent_run
from affinity.integrations.pydantic_ai.store import JournalStore, StoredConversation, StoredMessage

__all__ = [
    "AffinityDurability",
    "AgentRun",
    "AgentState",
    "JournalStore",
    "StoredConversation",
    "StoredMessage",
    "agent_conversations",
    "agent_run",
    "agent_service",
    "resolve_token",
]

show_all_in_help(globals())
