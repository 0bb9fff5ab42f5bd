"""The client's calls on failures: attempts with their errors and stacks, failures by time, and their counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from affinity.client.background import ClientBase
from affinity.client.calls import retry
from affinity.errors import InvalidInput
from affinity.limits import (
    MAX_FAILURE_GROUPS,
    MAX_FAILURE_SECONDS,
    MAX_FAILURES_SEARCHED,
    MAX_PAGE,
    SCRAPE_COUNT,
    check_choice,
    check_condition,
    check_id,
    check_integer,
    check_limit,
    is_number,
)
from affinity.paging import Page, Pages, not_a_cursor, read_number
from affinity.provider.contract import FailureFilter, FailureGroups, FailureKind, FailurePlace, FailureRecord

_DAY: Final = MAX_FAILURE_SECONDS
_PARTS_OF_CURSOR: Final = 5


class FailureCalls(ClientBase):
    """Calls that show what has failed."""

    async def failed_attempts(self, instance_id: str, *, execution_id: int) -> Sequence[FailureRecord]:
        """Return the failed attempts of the activities of an execution, oldest first, with their stacks: at most the
        last `limits.MAX_PAGE`. None: the execution has none, or there is no such execution.

        The stacks of the first `limits.FIRST_STACKS` attempts of an activity, and of the last `limits.LAST_STACKS`, are
        kept with its history; other attempts for two days. The stack of an attempt that was not repeated is in the
        history.

        Args:
            instance_id: the instance.
            execution_id: as of `Instance.execution_id`, or of a former execution.

        Raises:
            InvalidInput: the id or the number is refused.
        """
        check_id(instance_id, "instance id")
        check_integer(execution_id, "execution_id", 1)
        return await retry(partial(self._provider.list_failed_attempts, instance_id, execution_id, MAX_PAGE))

    def failures(
        self,
        *,
        seconds: float = _DAY,
        kind: FailureKind | None = None,
        name: str | None = None,
        error_type: str | None = None,
        text: str | None = None,
    ) -> Pages[FailureRecord]:
        """List failures of the last time, newest first: failed attempts of activities, failed orchestrations, and
        instances that are suspended, which stay until they go on, whatever ``seconds``. A wake of a conversation is an
        attempt of the activity ``KIND.wake``.

        With ``text``, a page has the failures that fit among the next `limits.MAX_FAILURES_SEARCHED` ones. It may have
        none, and not be the last: no index has texts of errors. With a codec they are decoded here, and then compared.

        Args:
            seconds: how far back, at most a day.
            kind: "activity", "orchestration" or "suspension"; with its name.
            name: of the activity or orchestration; with its kind.
            error_type: name of an exception class; with kind and name.
            text: stands in the text of the error; upper and lower case are the same.

        Raises:
            InvalidInput: a condition is outside its bounds, or lacks another one.
        """
        where = FailureFilter(seconds=_seconds(seconds), kind=kind, name=name, error_type=error_type)
        if kind is not None:
            check_choice("kind", kind, FailureKind)
        for condition, value in (("name", name), ("error_type", error_type), ("text", text)):
            check_condition(value, condition)
        if (kind is None) != (name is None) or (name is None and error_type is not None):
            raise InvalidInput("failures are found by kind and name together, and by error_type within these")
        wanted = None if text is None else text.casefold()

        async def read(after: str | None, limit: int) -> Page[FailureRecord]:
            return await self._read_failures(where if after is None else _behind(where, after), limit, wanted)

        return Pages(read)

    async def _read_failures(self, where: FailureFilter, limit: int, text: str | None) -> Page[FailureRecord]:
        if text is None:
            rows = await retry(partial(self._provider.list_failures, where, limit))
            return Page(items=rows, next=_cursor(rows[-1]) if len(rows) == limit else None)
        found: list[FailureRecord] = []
        for _ in range(0, MAX_FAILURES_SEARCHED, MAX_PAGE):
            rows = await retry(partial(self._provider.list_failures, where, MAX_PAGE))
            for row in rows:
                if text in row.error.casefold():
                    found.append(row)
                    if len(found) == limit:
                        return Page(items=found, next=_cursor(row))
            if len(rows) < MAX_PAGE:
                return Page(items=found, next=None)
            where = replace(where, after=_place(rows[-1]))
        return Page(items=found, next=_cursor(rows[-1]))

    async def failure_groups(
        self, *, seconds: float = 3600.0, limit: int = 50, most: int = SCRAPE_COUNT
    ) -> FailureGroups:
        """Count the failures of the last time, and all instances that are suspended, by activity or orchestration and
        class of the error: suspensions first, then those with the most failures. Each has the last one's error, and the
        id of its instance.

        Args:
            seconds: how far back, at most a day.
            limit: groups at most.
            most: where each count stops, up to `limits.SCRAPE_COUNT`.

        Raises:
            InvalidInput: an argument is outside its bounds.
        """
        check_limit(limit, MAX_FAILURE_GROUPS)
        check_limit(most, SCRAPE_COUNT, "most")
        return await retry(partial(self._provider.group_failures, _seconds(seconds), limit, most=most))


def _seconds(seconds: float) -> float:
    if not is_number(seconds) or not 0 < seconds <= MAX_FAILURE_SECONDS:
        raise InvalidInput(f"seconds = {seconds!r:.80}: must be a number above 0, and at most {MAX_FAILURE_SECONDS:g}")
    return float(seconds)


def _place(row: FailureRecord) -> FailurePlace:
    return FailurePlace(row.failed_at, row.instance_id, row.execution_id, row.activity_id, row.attempt)


def _cursor(row: FailureRecord) -> str:
    """The id comes last: it may have any character."""
    return f"{row.failed_at.isoformat()}/{row.execution_id}/{row.activity_id}/{row.attempt}/{row.instance_id}"


def _behind(where: FailureFilter, cursor: str) -> FailureFilter:
    parts = cursor.split("/", _PARTS_OF_CURSOR - 1)
    if len(parts) != _PARTS_OF_CURSOR:
        raise not_a_cursor(cursor)
    at, *numbers, instance_id = parts
    execution, activity, attempt = (read_number(number, cursor) for number in numbers)
    try:
        time = datetime.fromisoformat(at).astimezone(UTC)
    except (ValueError, OverflowError):
        raise not_a_cursor(cursor) from None
    check_condition(instance_id, "after")
    return replace(where, after=FailurePlace(time, instance_id, execution, activity, attempt))
