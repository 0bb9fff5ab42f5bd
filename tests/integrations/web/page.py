"""A client of the UI message stream, by the words of its protocol: independent of the code under test."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

Chunk: TypeAlias = dict[str, Any]


class Page:
    """What a page shows of a stream."""

    def __init__(self) -> None:
        self.steps: list[list[Chunk]] = []
        self.open: dict[str, Chunk] = {}
        self.other: list[Chunk] = []
        self.place: str | None = None
        self.is_done = False

    @property
    def text(self) -> str:
        return "".join([part["text"] for step in self.steps for part in step if part["type"] == "text"])

    @property
    def types(self) -> list[str]:
        return [chunk["type"] for chunk in self.other]

    def read(self, event: str) -> None:
        """Apply one event of the stream."""
        fields = dict(line.split(": ", 1) for line in event.split("\n") if ": " in line[1:])
        self.place = fields.get("id", self.place)
        if fields.get("data") == "[DONE]":
            self.is_done = True
        elif "data" in fields:
            self._apply(json.loads(fields["data"]))

    def _apply(self, chunk: Chunk) -> None:
        match chunk["type"]:
            case "start-step":
                self.steps.append([])
            case "reset-step":
                self.steps[-1] = []
            case "text-start" | "reasoning-start" as kind:
                self.open[chunk["id"]] = part = {"type": kind.removesuffix("-start"), "text": ""}
                self.steps[-1].append(part)
            case "text-delta" | "reasoning-delta":
                self.open[chunk["id"]]["text"] += chunk["delta"]
            case _:
                self.other.append(chunk)
