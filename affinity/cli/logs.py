"""The log of a worker, or of a console, on stderr: lines for people, or a JSON object a line."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

from pydantic_core import to_json

from affinity.telemetry import INSTANCE_ATTRIBUTE, LABEL_ATTRIBUTE, SESSION_ATTRIBUTE

LogFormat: TypeAlias = Literal["text", "json"]

_TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def configure_logging(level: str, form: LogFormat, worker_id: str | None = None) -> None:
    """Write the records of all loggers from ``level`` on to stderr, each with worker, instance, session, and the labels
    that the worker shows.
    """
    handler = logging.StreamHandler()
    handler.setFormatter((_JsonFormatter if form == "json" else _TextFormatter)(worker_id))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _ContextFormatter(logging.Formatter):
    def __init__(self, worker_id: str | None) -> None:
        super().__init__(_TEXT)
        self._worker_id = worker_id

    def _context(self, record: logging.LogRecord) -> dict[str, object]:
        """Worker, instance, session and labels. The loggers of contexts name instance and session in ``extra``, as do
        lines of the worker about an instance; for other lines it is known for which code they come from.
        """
        found = vars(record)
        return {
            "worker": self._worker_id,
            "instance": found.get("instance_id") or found.get(INSTANCE_ATTRIBUTE),
            "session": found.get("session_id") or found.get(SESSION_ATTRIBUTE),
            **{
                f"label.{name.removeprefix(LABEL_ATTRIBUTE)}": value
                for name, value in found.items()
                if name.startswith(LABEL_ATTRIBUTE)
            },
        }


class _TextFormatter(_ContextFormatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        known = " ".join(f"{name}={value}" for name, value in self._context(record).items() if value is not None)
        return super().formatMessage(record) + (f" [{known}]" if known else "")


class _JsonFormatter(_ContextFormatter):
    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._context(record),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return to_json(document, fallback=str, bytes_mode="utf8", inf_nan_mode="null").decode()
