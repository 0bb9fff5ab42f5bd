-- busy: those of some instances whose journal has inputs behind its watermark, its own or inherited; or that have no journal
SELECT json_group_array(a.value)
FROM json_each(:instance_ids) AS a
LEFT JOIN journals AS j ON j.session_id = a.value
WHERE j.journal_id IS NULL OR EXISTS (
    WITH RECURSIVE place (journal_id, base_id, base_seq, upto) AS (
        SELECT j.journal_id, j.base_id, j.base_seq, j.last_seq
        UNION ALL
        SELECT b.journal_id, b.base_id, b.base_seq, min(p.upto, p.base_seq)
        FROM place AS p CROSS JOIN journals AS b ON b.journal_id = p.base_id
        WHERE p.base_seq > j.processed
    )
    SELECT 1 FROM place AS p
    CROSS JOIN journal_entries AS i INDEXED BY journal_entries_inputs
        ON i.journal_id = p.journal_id AND i.is_input AND i.seq > j.processed AND i.seq <= p.upto
);

-- end_revisits: remove some revisits
DELETE FROM journal_revisits WHERE (journal_id, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:rows));

-- end_delegations: remove some delegations
DELETE FROM journal_delegations
WHERE (journal_id, delegation_id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:rows));

-- delegations: new delegations
INSERT INTO journal_delegations (journal_id, delegation_id, child)
SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows)
WHERE true
ON CONFLICT (journal_id, delegation_id) DO NOTHING;

-- request: new requests, unless one of the id is pending; in whole microseconds, as places in listings are
INSERT INTO journal_requests (journal_id, request_id, kind, wake_id, seq, created_at, expires_at, payload)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, coalesce((
    SELECT min(e.seq) FROM journal_entries AS e WHERE e.journal_id = value ->> 0 AND e.wake_id = value ->> 3), value ->> 4),
    :now, round(:now + (value ->> 5), 6), value ->> 6
FROM json_each(:rows)
WHERE true
ON CONFLICT (journal_id, request_id) DO NOTHING;

-- steps: steps, each in place of an earlier step of its wake and key
INSERT INTO journal_steps (journal_id, wake_id, key, arguments, result)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4
FROM json_each(:rows)
WHERE true
ON CONFLICT (journal_id, wake_id, key) DO UPDATE SET arguments = excluded.arguments, result = excluded.result;

-- revisit: new revisits, unless one of the key is pending
INSERT INTO journal_revisits (journal_id, key, due_at, priority, reason, note, wake_id)
SELECT value ->> 0, value ->> 1, :now + (value ->> 2), value ->> 3, value ->> 4, value ->> 5, value ->> 6
FROM json_each(:rows)
WHERE true
ON CONFLICT (journal_id, key) DO NOTHING;
