"""``affinity demo``: real conversations over worker processes, of which one is killed, and what became of them."""

from affinity.cli.demo.command import demo

__all__ = ["demo"]
