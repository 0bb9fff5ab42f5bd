"""Agents: what the handler of a conversation needs to ask a model, and to run the tools that it calls.

============  =======================================================
loop          rounds of a model and its tools, as part of a wake
tools         functions that a model may have called
builtins      tools that a model has over its own conversation
transcript    the events before a loop, and how much of them a model is given
formats       events as the messages of the APIs of models, and back
============  =======================================================
"""

from affinity.agent.builtins import builtin_tools
from affinity.agent.formats import Transcript, from_anthropic, from_openai, render_input, to_anthropic, to_openai
from affinity.agent.loop import LoopResult, LoopStop, WhileWaiting, run_loop
from affinity.agent.models import Model, ModelReply, ModelRequest, ToolCall
from affinity.agent.tools import Tool, ToolContext, ToolErrorKind, ToolRepeat, tool
from affinity.agent.transcript import ContextWindow
from affinity.field_words import show_all_in_help

__all__ = [
    "ContextWindow",
    "LoopResult",
    "LoopStop",
    "Model",
    "ModelReply",
    "ModelRequest",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolErrorKind",
    "ToolRepeat",
    "Transcript",
    "WhileWaiting",
    "builtin_tools",
    "from_anthropic",
    "from_openai",
    "render_input",
    "run_loop",
    "to_anthropic",
    "to_openai",
    "tool",
]

show_all_in_help(globals())
