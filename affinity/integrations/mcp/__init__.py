"""The Model Context Protocol: affinity as a server for assistants, and other servers as resources of sessions.

Needs ``pip install "affinity-workflows[mcp]"``.

operator    `operator_server`: what needs a person, why something waits, transcripts; with permission, actions
tools       `add_conversation`, `add_orchestration`: code of the application as tools of a server
resources   `server_resource`: a client of a server, one for each session, which goes where the session goes
"""

from __future__ import annotations

try:
    import mcp as _mcp
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'affinity-workflows[mcp]'", name=error.name) from None

from affinity.integrations.mcp.operator import OperatorAction, operator_server
from affinity.integrations.mcp.resources import server_resource
from affinity.integrations.mcp.tools import add_conversation, add_orchestration

del _mcp

__all__ = ["OperatorAction", "add_conversation", "add_orchestration", "operator_server", "server_resource"]
