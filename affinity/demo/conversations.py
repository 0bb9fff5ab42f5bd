"""Real conversations: the Chit Chat Challenge data set, as the PyPI package ``chitchat-dataset`` ships it."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate
from typing import Any, Final

from affinity.errors import InvalidOptions

DATASET_SIZE: Final = 7_168
"""Conversations in the data set."""

NO_DIGEST: Final = ""
"""Digest of an empty transcript."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """The lines of one person before the other one answers."""

    sender: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Two people, taking turns."""

    id: str
    messages: tuple[ChatMessage, ...]


def load_conversations(count: int, seed: int) -> Sequence[Conversation]:
    """Return ``count`` conversations of the data set; the same ``seed`` gives the same ones.

    Conversations with an answer come first: nearly half of the data set are single messages, whose sessions carry no
    state from turn to turn.

    Raises:
        InvalidOptions: the data set is not installed; the message says how to install it.
    """
    try:
        files = resources.files("chitchat_dataset")
    except ModuleNotFoundError:
        raise InvalidOptions("chitchat-dataset is not installed: pip install 'affinity-workflows[demo]'") from None
    # The package's own reader leaves the file to the garbage collector.
    records = json.loads(files.joinpath("dataset.json").read_text(encoding="utf-8"))
    ids = sorted(records)
    random.Random(seed).shuffle(ids)  # noqa: S311 -- a sample, not a secret
    ids.sort(key=lambda conversation_id: len(records[conversation_id]["messages"]) == 1)
    return [Conversation(one, tuple(map(_message, records[one]["messages"]))) for one in ids[:count]]


def extend_digest(digest: str, message: ChatMessage) -> str:
    """Digest of a transcript after one more message: it depends on every message so far and on their order."""
    line = json.dumps([digest, message.sender, message.texts])
    return hashlib.sha256(line.encode()).hexdigest()[:16]


def digests(messages: Iterable[ChatMessage]) -> Sequence[str]:
    """Digest of the transcript after each of its messages."""
    return list(accumulate(messages, extend_digest, initial=NO_DIGEST))[1:]


def _message(lines: Sequence[Any]) -> ChatMessage:
    return ChatMessage(lines[0]["sender"], tuple(line["text"] for line in lines))
