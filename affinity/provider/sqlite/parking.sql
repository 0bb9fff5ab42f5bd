-- park: items, each in place of the former item of its instance
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
