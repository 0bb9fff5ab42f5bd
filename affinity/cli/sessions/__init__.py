"""``affinity sessions``: the records and leases of sessions."""

from affinity.cli.sessions.command import sessions

__all__ = ["sessions"]
