"""``affinity sessions``: what is kept of sessions, and who holds them."""

from affinity.cli.sessions.command import sessions

__all__ = ["sessions"]
