"""The systems: ours and the peers, each in its best documented setting."""

from __future__ import annotations

from bench.systems.absurd import AbsurdSystem
from bench.systems.base import System
from bench.systems.dbos import DbosSystem
from bench.systems.duroxide import DuroxideSystem
from bench.systems.ours import OurSystem

SYSTEMS: dict[str, System] = {
    system.name: system for system in (OurSystem(), DuroxideSystem(), DbosSystem(), AbsurdSystem())
}
"""All of them, ours first."""

OURS = OurSystem.name
