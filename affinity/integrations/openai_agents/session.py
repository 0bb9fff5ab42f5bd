"""A session of the SDK in the state of a conversation."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from agents import SessionSettings, TResponseInputItem
from agents.memory import SessionABC
from pydantic import JsonValue
from pydantic_core import from_json, to_json

from affinity.errors import NotSerializable
from affinity.integrations.openai_agents.recording import HasItems, run_here


class StateSession(SessionABC):
    """A session of the SDK in the state of a conversation: its items commit with the wake, fenced as the state is.

    ::

        result = await run.run(agent, run.prompt, session=StateSession(wake.conversation_id, state))

    What a run in a block of `openai_run` changes is put into the state when the block has ended: a run that waits for a
    person leaves the state as it is. Outside of a block, each change is in the state immediately. An
    ``OpenAIResponsesCompactionSession`` may have it as its underlying session.
    """

    def __init__(
        self,
        session_id: str,
        state: HasItems,
        /,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        """Use the items of a state.

        Args:
            session_id: as the SDK shows it, such as the id of the conversation.
            state: of the conversation, with a field ``items``.
            session_settings: with the number of items that a run is given, the newest ones; also as a dictionary.

        Raises:
            TypeError: the dictionary has an unknown setting.
        """
        self.session_id = session_id
        if not isinstance(session_settings, SessionSettings):
            session_settings = SessionSettings().resolve(session_settings)
        self.session_settings = session_settings
        self._state = state

    def _items(self) -> list[dict[str, JsonValue]]:
        run = run_here()
        return self._state.items if run is None else run._items_of(self._state)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the newest items, oldest first: all, or ``limit``."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        items = self._items()
        found: Any = items if limit is None else items[-limit:] if limit > 0 else []
        return list(deepcopy(found))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end.

        Raises:
            NotSerializable: one has no JSON form.
        """
        try:
            self._items().extend(from_json(to_json(items)))
        except ValueError as error:
            raise NotSerializable(f"an item of session {self.session_id!r} has no JSON form: {error}") from error

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it; None: there is none."""
        items: Any = self._items()
        return items.pop() if items else None

    async def clear_session(self) -> None:
        """Remove all items."""
        self._items().clear()
