"""The code of live workers, as they registered it (`affinity.provider.contract.RegisteredNames`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from affinity.errors import ExplanationCode
from affinity.provider.contract import WorkerInfo
from affinity.records import frozen

ORCHESTRATIONS: Final = "orchestrations"
ACTIVITIES: Final = "activities"

_SINGULAR: Final = {ORCHESTRATIONS: "orchestration", ACTIVITIES: "activity"}


@frozen(kw_only=True)
class Difference:
    """A name under which live workers have different code."""

    what: str  # "activity 'reply'"
    worker_ids: Sequence[str]  # all live workers that have it


def differences(workers: Iterable[WorkerInfo]) -> list[Difference]:
    """The names for which the digests of live workers differ."""
    found: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for worker in workers:
        if worker.alive and not worker.restarting:
            for kind, names in worker.registered.items():
                for name, digest in names.items():
                    found[kind, name][worker.worker_id] = digest
    return [
        Difference(what=described(kind, name), worker_ids=sorted(digests))
        for (kind, name), digests in sorted(found.items())
        if len(set(digests.values())) > 1
    ]


def described(kind: str, name: str) -> str:
    """A name in messages: "orchestration 'chat@1.0.0'"."""
    return f"{_SINGULAR.get(kind, f'{kind} of kind')} {name!r}"


def lacking(alive: Iterable[WorkerInfo], kind: str, name: str, tag: str | None) -> ExplanationCode | None:
    """Why none of these workers can ever take work of this name and tag; None: one can."""
    able = [one for one in alive if has_code(one, kind, name)]
    if not able:
        return "name_not_registered"
    return "no_worker_with_tag" if tag is not None and not any(tag in one.tags for one in able) else None


def has_code(worker: WorkerInfo, kind: str, name: str) -> bool:
    """Whether the worker registered the name. The name of an orchestration without a version stands for any version."""
    names = worker.registered.get(kind, {})
    return name in names or (kind == ORCHESTRATIONS and any(each.partition("@")[0] == name for each in names))
