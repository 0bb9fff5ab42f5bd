"""Limits with instances that wait at them, without a worker: an instance keeps its slots until it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from affinity import Start
from affinity.client.requests import new_instance
from affinity.flow.store.contract import LimitSpec, RateBound, limits_of
from affinity.limits import MAX_ADMISSIONS
from affinity.orchestration.gates import LimitUse, gate_of
from affinity.provider.contract import Provider

SPECS: Final = (
    LimitSpec(name="model", concurrency=2, rate=RateBound(count=600, per=60.0)),
    LimitSpec(name="tenant", keyed=True, concurrency=1),
)


async def declare(provider: Provider, *specs: LimitSpec, app: str = "shop", code: str = "1") -> None:
    """Declare limits; by default `SPECS`."""
    await limits_of(provider).declare_limits(app, code, specs or SPECS)


async def wait_at(provider: Provider, limit: str, *instance_ids: str, key: str = "", priority: int = 0) -> None:
    """Start instances at a limit, and admit as many as it allows."""
    gate = gate_of((LimitUse(limit, key),), priority)
    for instance_id in instance_ids:  # one by one, so that they are in this order
        await provider.create_instance([replace(new_instance(Start("report", instance_id=instance_id)), gate=gate)])
    await limits_of(provider).admit(most=MAX_ADMISSIONS)


async def stage(provider: Provider) -> None:
    """Declare `SPECS`; of the keys ``acme`` and ``tiny`` one instance each has the slot, and others wait."""
    await declare(provider)
    await wait_at(provider, "tenant", "a-1", "a-2", "a-3", key="acme")
    await wait_at(provider, "tenant", "t-1", "t-2", key="tiny")
    await wait_at(provider, "model", "m-1", "m-2", "m-3")
