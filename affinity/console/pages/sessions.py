"""The sessions, and one session with the strip of its life."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from affinity.client import Client, ConversationInfo, Instance, SessionLife
from affinity.client.views import read_cursor
from affinity.console.pages.base import ROWS, Query, given, required
from affinity.console.payloads import Payload, Payloads
from affinity.console.strip import strip_of
from affinity.errors import SessionLoadFailed, SessionNotFound, UnknownConversation, UnknownInstance
from affinity.records import SessionFilter, SessionRecord
from affinity.session.transfer import readable


async def sessions(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """A page of the leases, by id, and how many each worker holds."""
    rows = await client.sessions_page(after=query.get("after"), limit=ROWS)
    more = rows[-1].session_id if len(rows) == ROWS else None
    return {"sessions": rows, "more": more, "workers": (await client.load()).workers}


async def records(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """A page of the records of sessions that fit, the last written ones first."""
    where: dict[str, Any] = given(query, "prefix", "kind", "name", "parent", "participant", "holder")
    if label := query.get("label"):
        name, _, value = label.partition("=")
        where["labels"] = {name: value}
    after = read_cursor(query["after"]) if query.get("after") else None
    found = await client.session_manager.page(SessionFilter(**where, after=after), limit=ROWS)
    at, session_id = found.next or (None, "")
    return {"records": found.items, "more": at and f"{at.isoformat()}/{session_id}"}


async def session(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """One session: its life, its lease, its record and its instances."""
    session_id = required(query, "id")
    life: SessionLife | None = None
    own: Instance | None = None
    conversation: ConversationInfo | None = None
    with suppress(SessionNotFound):
        life = await client.session_life(session_id)
    with suppress(UnknownInstance):
        own = await client.status(session_id)
    with suppress(UnknownConversation):
        conversation = await client.get_conversation(session_id)
    record = await client.session_store.load(session_id)
    if not (life or record or own or conversation):
        raise SessionNotFound(f"there is no session {session_id!r}")
    return {
        "session_id": session_id,
        "life": life,
        "own": own,
        "conversation": conversation,
        "strip": None if life is None else strip_of(life),
        "record": record,
        "state": None if record is None else _state(record, payloads),
        "instances": (await client.list_page(session_id=session_id, limit=ROWS)).items,
        "workers": [one for one in (await client.load()).workers if not one.draining],
    }


def _state(record: SessionRecord, payloads: Payloads) -> Payload | None:
    with suppress(SessionLoadFailed):  # damaged: its metadata is shown
        document = readable(record)
        value = document.get("state", document.get("state_base64"))
        return payloads.show("state", "state", record.metadata.kind, value)
    return None
