"""Conversations in a browser: the extra ``web``.

`create_chat` gives the routes of a chat: the UI message stream of Vercel's AI SDK, AG-UI, and server-sent events of the
journal. They work in Starlette and FastAPI.

=============  ============================================================================================
app            the routes, and the client behind them
access         who may do what
http           bodies, errors and streams over HTTP
turns          what belongs to some inputs, in order; the place up to which a browser has read
content        the content of messages, in the pieces that browsers show
ui_chunks      items of a conversation as chunks of the UI message stream
ui_messages    a journal as messages of the AI SDK; messages and answers that its client sends
ui             the routes of the AI SDK
ag_ui_events   items of a conversation as events of AG-UI
ag_ui          the routes of AG-UI
=============  ============================================================================================
"""

try:
    import starlette  # noqa: F401 -- what all modules of this package need
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "affinity.integrations.web needs Starlette: pip install 'affinity-workflows[web]'", name="starlette"
    ) from None

from affinity.integrations.web.access import MAY_ALL, MAY_CHAT, MAY_READ, ChatAccess, ChatAccessFunction, ChatAction
from affinity.integrations.web.app import WebChat, create_chat

__all__ = [
    "MAY_ALL",
    "MAY_CHAT",
    "MAY_READ",
    "ChatAccess",
    "ChatAccessFunction",
    "ChatAction",
    "WebChat",
    "create_chat",
]
