"""Session state of a given size: a chat in made-up words, which compress about as well as English does."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from pydantic import BaseModel

MESSAGE_BYTES = 500
"""Of one message in the state's JSON, roughly: a chat of a given size has so many of them."""

TEXT_LENGTH = 460
"""Letters of a message; the rest of it is the names of its fields."""

SYLLABLES = "ba be bo ca ce co da de di do fe fi ga ha he hi in is ja ke la le li lo ma me mi na ne no on or pa pe po"
WORDS = {1: 50, 2: 450, 3: 4_500}
"""Words by their number of syllables."""

TEXTS = 512
"""Different texts: 230 kB, far more than a compressor looks back."""


class Message(BaseModel):
    """What one side said."""

    number: int
    author: str
    text: str


class Chat(BaseModel):
    """The last messages of a conversation, and how many turns it has had."""

    turns: int = 0
    messages: list[Message] = []

    def go_on(self, session_id: str, size: int) -> None:
        """One turn: a new message comes, and the oldest goes. At the first one the chat gets its ``size`` in bytes."""
        if not self.messages:
            self.messages = _messages(session_id, 0, size)
        self.turns += 1
        self.messages.append(_message(session_id, self.turns))
        del self.messages[0]


def chat_after(session_id: str, turns: int, size: int) -> Chat:
    """What the chat of a session must be after so many turns."""
    return Chat(turns=turns, messages=_messages(session_id, turns, size))


def _messages(session_id: str, last: int, size: int) -> list[Message]:
    return [_message(session_id, number) for number in range(last + 1 - size // MESSAGE_BYTES, last + 1)]


def _message(session_id: str, number: int) -> Message:
    place = (zlib.crc32(session_id.encode()) + number) % TEXTS
    return Message(number=number, author=("user", "assistant")[number % 2], text=_texts()[place])


@cache
def _texts() -> Sequence[str]:
    """The same in every process. As in a language, a few words are frequent, and these are short."""
    dice = random.Random(0)  # noqa: S311 -- words, not secrets
    syllables = SYLLABLES.split()
    words = ["".join(dice.choices(syllables, k=length)) for length, count in WORDS.items() for _ in range(count)]
    weights = list(accumulate(1 / (rank + 5) for rank in range(len(words))))
    return [" ".join(dice.choices(words, cum_weights=weights, k=TEXT_LENGTH))[:TEXT_LENGTH] for _ in range(TEXTS)]
