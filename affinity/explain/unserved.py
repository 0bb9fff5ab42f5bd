"""Work that waits and that no live worker can take: none has its code, or its tag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from affinity.errors import ExplanationCode
from affinity.explain.names import described, lacking
from affinity.provider.contract import Provider, WaitingWork, WorkerInfo
from affinity.records import frozen

_SENTENCES: Final[dict[ExplanationCode, str]] = {
    "name_not_registered": "no live worker registers the {what}: include it in the app of one",
    "no_worker_with_tag": "no live worker that registers the {what} has the tag {tag!r}: start one with `--tag {tag}`",
}


@frozen(kw_only=True)
class UnservedWork:
    """Work of one name that no live worker can take."""

    code: ExplanationCode  # "name_not_registered", "no_worker_with_tag"
    sentence: str  # what is missing, and the remedy
    count: int  # work items, or messages of instances, among the oldest ones
    since: datetime | None  # the oldest could be taken; None: unknown
    instance_id: str  # one of its instances


async def unserved_work(provider: Provider, workers: Sequence[WorkerInfo], limit: int) -> Sequence[UnservedWork]:
    """What no live one of these workers can take, among the ``limit`` oldest rows of each queue. Empty while none is
    alive: then all work waits.

    Raises:
        ProviderError: the database does not answer.
    """
    alive = [one for one in workers if one.alive and not one.restarting]
    if not alive:
        return []
    found: dict[tuple[ExplanationCode, str], UnservedWork] = {}
    for one in await provider.sample_waiting_work(limit):
        code = lacking(alive, one.kind, one.name, one.tag)
        if code is not None:
            work = _unserved(code, one)
            same = found.get((code, work.sentence))
            found[code, work.sentence] = work if same is None else _together(same, work)
    return list(found.values())


def _unserved(code: ExplanationCode, work: WaitingWork) -> UnservedWork:
    sentence = _SENTENCES[code].format(what=described(work.kind, work.name), tag=work.tag)
    return UnservedWork(code=code, sentence=sentence, count=work.count, since=work.since, instance_id=work.instance_id)


def _together(one: UnservedWork, other: UnservedWork) -> UnservedWork:
    """Of the queue of sessions, and of the queue of work without one."""
    since = min((each.since for each in (one, other) if each.since is not None), default=None)
    return replace(one, count=one.count + other.count, since=since)
