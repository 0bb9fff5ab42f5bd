"""Conversations: sessions with a journal of what happened in them, and a handler that a worker wakes for each input."""

from affinity.conversation.stream import Retracted, Streamed, Streams, StreamWriter

__all__ = ["Retracted", "StreamWriter", "Streamed", "Streams"]
