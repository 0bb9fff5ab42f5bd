-- learn: which database this is, and how far it is
SELECT token, reached FROM timeline;

-- advance: one step further
UPDATE timeline SET reached = reached + 1;

-- begin: from now on it is another one
UPDATE timeline SET token = lower(hex(randomblob(16)));

-- raise_epochs: no epoch comes back; the random part, since a file may be set back to the same moment twice
UPDATE counters SET value = max(value + (1 << 32), CAST(:now * 1000000 AS INTEGER)) + (random() & 4294967295) WHERE name = 'epoch';

-- renew_epochs: what anybody has in memory of a session is of an old epoch
UPDATE sessions SET epoch = (SELECT CAST(value AS INTEGER) FROM counters WHERE name = 'epoch'), claimed_at = :now;

-- begin_message_ids: SQLite makes the row with the first message; the rest of the file may be from before that
INSERT INTO sqlite_sequence (name, seq)
SELECT 'orchestrator_queue', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'orchestrator_queue');

-- raise_message_ids: no id of a message comes back
UPDATE sqlite_sequence SET seq = max(seq + (1 << 32), CAST(:now * 1000000 AS INTEGER)) + (random() & 4294967295)
WHERE name = 'orchestrator_queue';

-- end_leases: of all workers
UPDATE workers SET locked_until = :now WHERE locked_until > :now;

-- is_behind: whether an epoch is in use that is yet to be issued, as far as the records that were written last say
SELECT max(
    coalesce((SELECT max(epoch) FROM sessions), 0),
    coalesce((SELECT max(epoch) FROM (SELECT epoch FROM session_states ORDER BY updated_at DESC LIMIT :limit)), 0)
) > (SELECT value FROM counters WHERE name = 'epoch');

-- raise_to_used: all epochs that are in use are issued
UPDATE counters SET value = max(
    value,
    coalesce((SELECT max(epoch) FROM sessions), 0), coalesce((SELECT max(epoch) FROM session_states), 0)
) WHERE name = 'epoch';
