"""Steps of simulated clients and scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from affinity.errors import SessionWriteConflict
from affinity.provider.contract import (
    NewMessage,
)
from affinity_conformance.providers.builders import new_instance
from tests.model import steps as do
from tests.model.cluster_state import (
    ClusterState,
    ReadRecord,
    SimulatedScript,
    Writing,
    expect,
)


class ScriptSteps(ClusterState):
    """Carries out the steps of clients, and of scripts that write records of sessions."""

    # -- clients and scripts

    async def _client(self, step: do.Create | do.Send | do.Delete) -> None:
        name = f"i{step.instance}"
        times = 1 if isinstance(step, do.Delete) or step.reply != "twice" else 2
        match step:
            case do.Create():
                new = new_instance(name, start=self._tag("start"), generation=self._tag("generation"))
                for _ in range(times):
                    (created,) = await self.provider.create_instance([new])
                    expect(f"{name} created", created, self.model.create(new))
            case do.Send():
                key = None if step.key is None else f"k{step.key}"
                for _ in range(times):
                    message = NewMessage(instance_id=name, payload=self._tag("event"), delay=float(step.delay), key=key)
                    (delivery,) = await self.provider.send_message([message])
                    expect(f"delivery to {name}", delivery, self.model.send(message))
            case do.Delete():
                found = await self.provider.delete_instance([name], force=step.force, tree=step.tree)
                wanted = self.model.delete([name], force=step.force, tree=step.tree)
                expect(f"deletion of {name}", list(found), wanted)
        await self._look()

    async def _script(self, script: SimulatedScript, session_id: str, step: do.Load | do.Save | do.Remove) -> None:
        if isinstance(step, do.Load):
            loaded = await self.provider.states.load(session_id)
            self._judge_record(session_id, loaded)
            script.seen[session_id] = (
                ReadRecord(loaded.version, loaded.generation, loaded.state.decode()) if loaded else ReadRecord()
            )
        elif step.reply == "late":
            await self.database.pause_writes(session_id)
            await self._hold_up(script, session_id, step)
        elif isinstance(step, do.Save):
            writing = self._prepare(script, session_id, step)
            for _ in range(2 if step.reply == "twice" else 1):
                task = asyncio.ensure_future(writing.send(self.elsewhere))
                await asyncio.wait([task])
                self._saved(script, writing, task)
                await self._look()
        else:
            removed = await self.elsewhere.states.delete([session_id])
            expect("removed", list(removed), [session_id] if self.model.records.pop(session_id, None) else [])
            await self._look()

    def _prepare(self, script: SimulatedScript, session_id: str, step: do.Save) -> Writing:
        seen = script.seen.get(session_id, ReadRecord()) if step.checked else None
        content = f"{seen.content if seen else ''}{self._tag('saved')}\n"
        return Writing(session_id, content, seen, self._tag("record"), self._tag("key") if step.key else None)

    def _saved(self, script: SimulatedScript, writing: Writing, task: asyncio.Task[int]) -> None:
        record = self.model.records.get(writing.session_id)
        error = task.exception()
        if error is not None and not isinstance(error, SessionWriteConflict):
            raise error
        if writing.key is not None and record is not None and record.key == writing.key:
            expect("a save that is repeated", error is None and task.result(), record.version)
            return
        version, before = (record.version, record.content) if record else (0, "")
        passes = writing.seen is None or writing.seen.content == before
        expect(f"save of {writing.session_id}", error is None, passes)
        if error is None:
            expect("version", task.result(), version + 1)
            self.model.write(writing.session_id, writing.content, key=writing.key)
            script.seen.pop(writing.session_id, None)
            if writing.generation is not None:
                script.seen[writing.session_id] = ReadRecord(version + 1, writing.generation, writing.content)

    async def _hold_up(self, script: SimulatedScript, session_id: str, step: do.Save | do.Remove) -> None:
        """Begin a write that stops in the middle, where the database allows that, until `FinishWrites`."""
        if isinstance(step, do.Save):
            writing = self._prepare(script, session_id, step)
            save = await self.database.settle(writing.send(self.elsewhere))
            self._held_up.append((save, lambda: self._saved(script, writing, save)))
        else:
            remove = await self.database.settle(self.elsewhere.states.delete([session_id]))
            self._held_up.append((remove, lambda: self._removed(session_id, remove)))
        if self._held_up[0][0].done():
            await self._finish()

    def _removed(self, session_id: str, task: asyncio.Task[Sequence[str]]) -> None:
        expect("removed", list(task.result()), [session_id] if self.model.records.pop(session_id, None) else [])
