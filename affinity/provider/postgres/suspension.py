"""Suspended instances: taking them out of service, and letting them go on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from psycopg.types.numeric import Int8

from affinity.provider.contract import Reset, Resumption, Suspend, WorkerIdentity
from affinity.provider.postgres.base import Verbs, flags, who
from affinity.provider.postgres.driver.arrays import Bools, Floats, Ints, Texts
from affinity.provider.statements import load_statements

_SQL: Final = load_statements(__package__, "suspension.sql")


class SuspensionVerbs(Verbs):
    """`suspend_instance`, `retry_suspended`, `resume_instance` and `reset_instance`."""

    async def suspend_instance(self, identity: WorkerIdentity, suspends: Sequence[Suspend]) -> Sequence[bool]:
        if not suspends:
            return []
        params = {
            **who(identity),
            "instance": Texts(one.instance_id for one in suspends),
            "birth": Texts(one.birth for one in suspends),
            "execution": Ints(one.execution_id for one in suspends),
            "events": Ints(one.event_count for one in suspends),
            "error_type": Texts(one.error_type for one in suspends),
            "message": Texts(one.message for one in suspends),
            "code": Texts(one.code for one in suspends),
            "needs_code": Bools(one.needs_code for one in suspends),
        }
        rows = await self._links.quick.run(_SQL["suspend"], params)
        return flags(len(suspends), (n for (n,) in rows))

    async def retry_suspended(
        self, identity: WorkerIdentity, *, names: Collection[str], code: str, limit: int
    ) -> Sequence[str]:
        params = {**who(identity), "names": Texts(names), "code": code, "limit": Int8(limit)}
        return [instance_id for (instance_id,) in await self._links.misc.run(_SQL["retry"], params)]

    async def resume_instance(self, instance_ids: Sequence[str]) -> Sequence[Resumption]:
        rows = await self._links.quick.run(_SQL["resume"], {"instance": Texts(instance_ids)})
        suspended: dict[str, bool] = dict(rows)
        resumptions: list[Resumption] = []
        for instance_id in instance_ids:
            found = suspended.get(instance_id)
            resumptions.append("unknown" if found is None else "resumed" if found else "not_suspended")
            if found:
                suspended[instance_id] = False  # named twice, it is not suspended the second time
        return resumptions

    async def reset_instance(self, reset: Reset) -> bool:
        messages, items = reset.messages, reset.work_items
        watches = dict(reset.watches)  # the last one of a session replaces those before
        params = {
            "instance": reset.instance_id,
            "birth": reset.birth,
            "execution": Int8(reset.execution_id),
            "events": Int8(reset.event_count),
            "keep": Int8(reset.keep),
            "event": Texts(reset.history),
            "custom_status": reset.custom_status,
            "message_instance": Texts(message.instance_id for message in messages),
            "message_birth": Texts(message.birth for message in messages),
            "message": Texts(message.payload for message in messages),
            "message_delay": Floats(message.delay for message in messages),
            "message_timer": Ints(message.timer and message.timer[1] for message in messages),
            "item_activity": Ints(item.key.activity_id for item in items),
            "item_name": Texts(item.name for item in items),
            "item_session": Texts(item.session_id for item in items),
            "item_payload": Texts(item.payload for item in items),
            "watch_session": Texts(watches),
            "watch": Texts(watches.values()),
        }
        ((done,),) = await self._links.quick.run(_SQL["reset"], params)
        return bool(done)
