"""Sequences that are behind their tables, as after a restore that copies rows and no sequences.

Ids and epochs that were issued already would come back: new rows would be duplicates, and sessions would be refused by
their own records. So the sequences are moved past all that is used, and a new timeline begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from psycopg import AsyncConnection

from affinity.provider.postgres.driver.wire import Row
from affinity.provider.schema import RECENT_RECORDS

# Of the records the last ones will do to find out: reading all of them takes too long for each start of a worker.
_BEHIND: Final[LiteralString] = """
SELECT s.sequencename
FROM pg_sequences s JOIN (VALUES
    ('epochs', (
        SELECT max(epoch) FROM (
            SELECT epoch FROM sessions
            UNION ALL
            (SELECT epoch FROM session_states ORDER BY updated_second DESC LIMIT %s)) used)),
    ('orchestrator_queue_id_seq', (SELECT max(id) FROM orchestrator_queue))
) AS t (name, used) ON s.sequencename = t.name
WHERE s.schemaname = current_schema AND t.used > coalesce(s.last_value, 0)
  -- Without a right to it, its last value is NULL, as for a sequence that was never used.
  AND has_sequence_privilege(format('%%I.%%I', s.schemaname, s.sequencename), 'SELECT, USAGE')
ORDER BY s.sequencename"""

_REPAIR: Final[LiteralString] = """
SELECT setval('epochs', greatest(
    (SELECT last_value FROM epochs), (SELECT max(epoch) FROM sessions), (SELECT max(epoch) FROM session_states)));
SELECT setval('orchestrator_queue_id_seq', greatest(
    (SELECT last_value FROM orchestrator_queue_id_seq), (SELECT max(id) FROM orchestrator_queue)));
SELECT begin_timeline()"""


async def find_behind(connection: AsyncConnection[Row]) -> Sequence[str]:
    """Names of the sequences that are behind their tables."""
    cursor = await connection.execute(_BEHIND, [RECENT_RECORDS])
    return [name for (name,) in await cursor.fetchall()]


async def repair(connection: AsyncConnection[Row]) -> None:
    """Move all sequences past the used values, and begin a new timeline; within a transaction."""
    await connection.execute(_REPAIR, prepare=False)
