"""A release with which instances cannot go on, so that workers suspend them, and the one that follows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import wraps
from typing import Any, Final
from zlib import crc32

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import affinity
from affinity import Instance
from affinity.orchestration.definitions import OrchestrationDefinition
from affinity.testing import Env
from affinity.testing.env.processes import ProcessEnv
from affinity.worker.maintenance import RETRY_SECONDS
from tests.programs import rest
from tests.programs.areas import AREAS
from tests.programs.play import Play
from tests.programs.program import CODE_VERSION, Rollout, RolloutKind

UNRECORDED: Final = 0.125
"""Seconds of a timer that no history has."""

ROLLOUTS: Final[SearchStrategy[Rollout]] = st.builds(
    Rollout,
    at=st.integers(1, 12) | st.integers(1, 60),
    kind=st.sampled_from(("changed", "missing")),
    resumed_by=st.sampled_from(("operator", "release", "rollback")),
    ticks=st.sampled_from((4, 0, 20, 100, None, None)),
)

VERSIONS: Final[Mapping[str, tuple[str, str]]] = {
    "operator": (CODE_VERSION, CODE_VERSION),
    "release": ("2", "3"),
    "rollback": ("2", CODE_VERSION),
}
"""Code versions of the release, and of the one that follows it."""

ERRORS: Final[Mapping[RolloutKind, str]] = {"changed": "Nondeterminism", "missing": "UnknownOrchestration"}

GOOD: Final = affinity.App("programs")
for _area in AREAS.values():
    _area.include(GOOD)

CHANGED: Final = affinity.App("programs")
CHANGED.include(GOOD)

MISSING: Final = affinity.App("programs")
MISSING.include(GOOD)
MISSING._orchestrations.clear()
MISSING._latest.clear()


def _changed(definition: OrchestrationDefinition) -> OrchestrationDefinition:
    """Code that fits the histories of about half of the instances."""

    @wraps(definition.function)
    async def function(ctx: affinity.OrchestrationContext, *arguments: Any) -> Any:
        if ctx.is_replaying and crc32(ctx.instance_id.encode()) % 2:
            await ctx.schedule_timer(UNRECORDED)
        return await definition.function(ctx, *arguments)

    return OrchestrationDefinition(definition.name, definition.version, function)


for _name, _definition in GOOD._orchestrations.items():
    CHANGED._orchestrations[_name] = CHANGED._latest[_definition.name] = _changed(_definition)


def begin(play: Play, rollout: Rollout) -> None:
    """All workers crash, and start again with the release."""
    play.suspends = True
    name = "CHANGED" if rollout.kind == "changed" else "MISSING"
    _set_code(play.env, name, VERSIONS[rollout.resumed_by][0])
    _replace_workers(play.env)


async def end(play: Play, rollout: Rollout) -> None:
    """They crash, and start again with code that can go on. The operator resumes the instances if that is to do it."""
    _set_code(play.env, "GOOD", VERSIONS[rollout.resumed_by][1])
    async with play.env._crashing:  # a worker may start with the release at this moment
        _replace_workers(play.env)
    play.suspends = False
    if rollout.resumed_by == "operator":
        await play.env.client.resume_many([each.instance_id for each in await _suspended(play.env)])


def _set_code(env: Env, name: str, version: str) -> None:
    """Of workers that start from now on."""
    env._app = globals()[name]
    env._options = env._options.model_copy(update={"code_version": version})
    if isinstance(env, ProcessEnv):
        env._target = f"{__name__}:{name}"


def _replace_workers(env: Env) -> None:
    for worker in env.workers:
        env._crash_in_commit(worker, restart=True)


async def go_on(play: Play, rollout: Rollout | None) -> None:
    """At rest only the release has suspended instances, and `affinity.explain` says so. They go on with the release
    that has followed it, by themselves or by the operator. What messages a resume has missed, a sweep finds.

    Raises:
        AssertionError: a rule is broken.
    """
    env = play.env
    left = await _suspended(env)
    if rollout is None:
        assert not left, f"suspended without a release: {_shown(left)}"
        return
    await rest.check(env)
    for each in left:
        await _check_reason(env, rollout, each)
    if play.suspends:
        await end(play, rollout)
    elif rollout.resumed_by == "operator":
        await env.client.resume_many([each.instance_id for each in left])
    await env.run_until_idle()
    await env.advance(2 * RETRY_SECONDS)
    await env.run_until_idle()
    left = await _suspended(env)
    assert not left, f"still suspended: {_shown(left)}"


async def _check_reason(env: Env, rollout: Rollout, info: Instance) -> None:
    name, why = info.instance_id, info.suspension
    error = None if why is None else why.error_type
    assert error == ERRORS[rollout.kind], f"{name} is suspended by {why}, not {rollout}"
    found = await env.client.explain(name)
    assert found is not None, f"{name} is suspended, and waits for nothing"
    assert (found.code, found.instance_id) == ("suspended", name), f"{name} is suspended, and waits: {found}"


def _shown(instances: Sequence[Instance]) -> Sequence[object]:
    return [(each.instance_id, each.suspension) for each in instances]


async def _suspended(env: Env) -> Sequence[Instance]:
    return [each async for each in env.client.list_instances(status=["suspended"])]
