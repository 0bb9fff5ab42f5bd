-- busy: of some instances, the ones whose journal has inputs behind its watermark, of its own or inherited; or that have none
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

-- park: items, each in place of the one before of its instance
REPLACE INTO parked_items (instance_id, execution_id, activity_id, name, session_id, payload)
SELECT value ->> '$[0][0]', value ->> '$[0][1]', value ->> '$[0][2]', value ->> 1, value ->> 2, value ->> 3
FROM json_each(:rows);

-- unpark: queue items in order, each on its route; one that is in the queue already stays as it is
INSERT INTO worker_queue (
    instance_id, execution_id, activity_id, name, session_id, route, visible_at, enqueued_at, payload
)
SELECT z.instance_id, z.execution_id, z.activity_id, z.name, z.session_id, j.value ->> 1, :now, :now, z.payload
FROM json_each(:rows) AS j
CROSS JOIN parked_items AS z ON z.instance_id = j.value ->> 0
WHERE true
ON CONFLICT DO NOTHING;

-- remove: items of instances
DELETE FROM parked_items WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- cancel: remove parked items that turns give up
DELETE FROM parked_items WHERE (instance_id, execution_id, activity_id) IN (
    SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows)
);
