"""``affinity replay``: histories against the code of an app, without a worker."""

from affinity.cli.replay.command import replay

__all__ = ["replay"]
