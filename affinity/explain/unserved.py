"""Work that waits and that no live worker takes: none has its code, or its tag, or all that have them drain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from affinity.errors import ExplanationCode
from affinity.explain.names import described, has_code, lacking
from affinity.provider.contract import Provider, WaitingWork, WorkerInfo, has_tag
from affinity.records import frozen

_SENTENCES: Final[dict[ExplanationCode, str]] = {
    "name_not_registered": "no live worker registers the {what}: include it in the app of one",
    "no_worker_with_tag": "no live worker that registers the {what} has the tag {tag!r}: start one with `--tag {tag}`",
    "no_worker": "no worker is alive, to take the {what}: start one",
    "workers_draining": "all workers drain that could take the {what} ({workers}): start another, or end an operator's "
    "drain with `affinity resume --worker ID`",
}


_SHOWN: Final = 5
"""Workers that a sentence names at most."""


@frozen(kw_only=True)
class UnservedWork:
    """Work of one name that no live worker takes."""

    code: ExplanationCode  # "name_not_registered", "no_worker_with_tag", "workers_draining", "no_worker"
    sentence: str  # what is missing, and the remedy
    count: int  # work items, or messages of instances, among the oldest ones
    since: datetime | None  # the oldest could be taken; None: unknown
    instance_id: str  # one of its instances


async def unserved_work(provider: Provider, workers: Sequence[WorkerInfo], limit: int) -> Sequence[UnservedWork]:
    """What no live one of these workers takes, among the ``limit`` oldest rows of each queue.

    Raises:
        ProviderError: the database does not answer.
    """
    alive = [one for one in workers if one.alive and not one.restarting]
    found: dict[tuple[ExplanationCode, str], UnservedWork] = {}
    for one in await provider.sample_waiting_work(limit):
        code, able = _reason(alive, one)
        if code is not None:
            work = _unserved(code, one, able)
            same = found.get((code, work.sentence))
            found[code, work.sentence] = work if same is None else _together(same, work)
    return list(found.values())


def _reason(alive: Sequence[WorkerInfo], work: WaitingWork) -> tuple[ExplanationCode | None, Sequence[WorkerInfo]]:
    """Why no worker takes it, with the workers that could; None: one does."""
    if not alive:
        return "no_worker", ()
    if (code := lacking(alive, work.kind, work.name, work.tag)) is not None:
        return code, ()
    able = [each for each in alive if has_code(each, work.kind, work.name)]
    able = [each for each in able if work.tag is None or has_tag(each.tags, work.tag)]
    return ("workers_draining" if all(each.draining for each in able) else None), able


def _unserved(code: ExplanationCode, work: WaitingWork, able: Sequence[WorkerInfo]) -> UnservedWork:
    workers = ", ".join(sorted(each.worker_id for each in able)[:_SHOWN]) + (", …" if len(able) > _SHOWN else "")
    sentence = _SENTENCES[code].format(what=described(work.kind, work.name), tag=work.tag, workers=workers)
    return UnservedWork(code=code, sentence=sentence, count=work.count, since=work.since, instance_id=work.instance_id)


def _together(one: UnservedWork, other: UnservedWork) -> UnservedWork:
    """Of the queue of sessions, and of the queue of work without one."""
    since = min((each.since for each in (one, other) if each.since is not None), default=None)
    return replace(one, count=one.count + other.count, since=since)
