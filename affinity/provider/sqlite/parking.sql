-- park: items, each in place of the former item of its instance
REPLACE INTO parked_items (instance_id, execution_id, activity_id, name, session_id, payload, gate, limited)
SELECT value ->> '$[0][0]', value ->> '$[0][1]', value ->> '$[0][2]', value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
FROM json_each(:rows);

-- unpark: queue items in order, each on its route, or at its gate; one that is in the queue already stays as it is
INSERT INTO worker_queue (
    instance_id, execution_id, activity_id, name, session_id, route, visible_at, enqueued_at, payload,
    gate, limited, gate_session
)
SELECT z.instance_id, z.execution_id, z.activity_id, z.name, iif(z.limited, NULL, z.session_id),
       iif(z.limited, 'gate', j.value ->> 1),
       -- One with a priority, and without limits, begins before others: see affinity/orchestration/gates.py.
       :now - iif(z.gate IS NULL OR z.limited, 0, (z.gate ->> 0) * :priority_seconds), :now, z.payload,
       z.gate, z.limited, iif(z.limited, z.session_id, NULL)
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
