"""The code of live workers, as they registered it (`affinity.provider.contract.RegisteredNames`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from affinity.errors import ExplanationCode
from affinity.provider.contract import RegisteredNames, WorkerInfo, has_tag
from affinity.records import frozen

ORCHESTRATIONS: Final = "orchestrations"
ACTIVITIES: Final = "activities"

_SINGULAR: Final = {ORCHESTRATIONS: "orchestration", ACTIVITIES: "activity"}


@frozen(kw_only=True)
class CodeDifference:
    """A name under which live workers have different code."""

    what: str  # "activity 'reply'"
    worker_ids: Sequence[str]  # all live workers that have it


def code_differences(workers: Iterable[WorkerInfo]) -> list[CodeDifference]:
    """The names under which live workers have other functions: of another module or qualified name. In a rollout of one
    app these are the same, and the signatures may differ; apps of different names differ by signatures too.
    """
    found: defaultdict[tuple[str, str], dict[str, tuple[str, str]]] = defaultdict(dict)
    for worker in workers:
        if worker.alive and not worker.restarting:
            for kind, names in worker.registered.items():
                for name, digest in names.items():
                    found[kind, name][worker.worker_id] = digest, worker.labels.get("app", "")
    return [
        CodeDifference(what=described(kind, name), worker_ids=sorted(codes))
        for (kind, name), codes in sorted(found.items())
        if _differ(codes.values())
    ]


def _differ(codes: Collection[tuple[str, str]]) -> bool:
    """Whether digests (`affinity.orchestration.app.digest_of`) of functions, each with the name of its app, differ."""
    is_one_app = len({app for _, app in codes}) == 1
    return len({digest.partition(".")[0] if is_one_app else digest for digest, _ in codes}) > 1


def described(kind: str, name: str) -> str:
    """A name in messages: "orchestration 'chat@1.0.0'"."""
    return f"{_SINGULAR.get(kind, f'{kind} of kind')} {name!r}"


def lacking(alive: Iterable[WorkerInfo], kind: str, name: str, tag: str | None) -> ExplanationCode | None:
    """Why none of these workers can ever take work of this name and tag; None: one can."""
    able = [one for one in alive if has_code(one, kind, name)]
    if not able:
        return "name_not_registered"
    return "no_worker_with_tag" if tag is not None and not any(has_tag(one.tags, tag) for one in able) else None


def has_code(worker: WorkerInfo, kind: str, name: str) -> bool:
    """Whether the worker registered the name. The name of an orchestration without a version stands for any version."""
    return is_registered(worker.registered, kind, name)


def is_registered(registered: RegisteredNames, kind: str, name: str) -> bool:
    """Whether the name is among these; see `has_code`."""
    names = registered.get(kind, {})
    return name in names or (kind == ORCHESTRATIONS and any(each.partition("@")[0] == name for each in names))
