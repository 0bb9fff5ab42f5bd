-- statuses: statuses and generations of some instances
SELECT json_group_array(json_array(i.instance_id, i.status, i.generation))
FROM json_each(:instance_ids) AS j CROSS JOIN instances AS i ON i.instance_id = j.value;

-- send: queue messages on the routes of their owners, or with the start at a gate, unless their instance is missing or has finished
-- (the array is read in order, so the messages arrive in the order of the batch)
INSERT INTO orchestrator_queue (instance_id, route, visible_at, timer_execution, timer_id, payload)
SELECT i.instance_id,
       CASE WHEN i.status = 'suspended' THEN 'suspended' WHEN i.gate IS NOT NULL THEN iif(j.value ->> 6, 'gate', 'gated')
            WHEN w.worker_id IS NULL THEN 'new' ELSE 'w:' || w.worker_id END,
       max(:now + (j.value ->> 1), CASE WHEN i.status = 'pending' THEN coalesce(i.starts_at, 0) ELSE 0 END), j.value ->> 2, j.value ->> 3, j.value ->> 4
FROM json_each(:rows) AS j
CROSS JOIN instances AS i ON i.instance_id = j.value ->> 0
LEFT JOIN workers AS w
    ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation AND w.locked_until > :now
WHERE i.status NOT IN ('completed', 'failed', 'cancelled') AND (j.value ->> 5 IS NULL OR i.generation = j.value ->> 5);

-- create: instances whose ids are not taken
INSERT INTO instances (
    instance_id, generation, name, version, parent_id, parent_generation, on_deleted, session_id, gate, limited,
    starts_at, waits_since, labels, created_at, updated_at
)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8,
       value ->> 9, value ->> 10, iif(value ->> 10 IS NULL, NULL, :now), value ->> 11, :now, :now
FROM json_each(:rows);

-- end_start_waits: instances that wait to start, or at their gates, wait no longer
UPDATE instances SET gate = NULL, limited = NULL, starts_at = NULL, waits_since = NULL, updated_at = :now
WHERE instance_id = :instance_id AND (:generation IS NULL OR generation = :generation) AND status = 'pending'
  AND (gate IS NOT NULL OR starts_at > :now);

-- release_messages: of an instance that waits no longer; visible soon, in order
UPDATE orchestrator_queue SET route = 'new', visible_at = :now + 0.001
WHERE instance_id = :instance_id;

-- unread: how many messages other than timers some instances have, up to a limit
SELECT json_group_array(json_array(i.instance_id, i.unread + (
    SELECT count(*) FROM (
        SELECT 1 FROM orchestrator_queue AS q WHERE q.instance_id = i.instance_id AND q.timer_id IS NULL LIMIT :most
    )
)))
FROM json_each(:instance_ids) AS j CROSS JOIN instances AS i ON i.instance_id = j.value;

-- routes: in the queue, from one on, found one by one in the index
WITH RECURSIVE routes (route) AS (
    SELECT min(route) FROM orchestrator_queue WHERE route > :first
    UNION ALL
    SELECT (SELECT min(route) FROM orchestrator_queue WHERE route > routes.route) FROM routes
    WHERE routes.route IS NOT NULL
)
SELECT route FROM routes WHERE route IS NOT NULL;

-- reroute_instances: route messages of instances, as many as the limit allows
UPDATE orchestrator_queue SET route = :route WHERE id IN (
    SELECT q.id FROM json_each(:instance_ids) AS j
    CROSS JOIN orchestrator_queue AS q ON q.instance_id = j.value AND q.route <> :route
    LIMIT :limit
);

-- reroute_all_messages: route all messages of instances
UPDATE orchestrator_queue SET route = :route
WHERE instance_id IN (SELECT value FROM json_each(:rows)) AND route <> :route;

-- reroute_messages: repair routes of messages to a worker that does not own their instance
UPDATE orchestrator_queue SET route = stale.right_route
FROM (
    SELECT id, right_route FROM (
        SELECT q.id, CASE WHEN i.status = 'suspended' THEN 'suspended'
                          WHEN i.gate IS NOT NULL THEN 'gated'
                          WHEN w.worker_id IS NULL THEN 'new' ELSE 'w:' || w.worker_id END AS right_route
        FROM orchestrator_queue AS q
        JOIN instances AS i ON i.instance_id = q.instance_id
        LEFT JOIN workers AS w
            ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation AND w.locked_until > :now
        WHERE q.route = :route
    )
    WHERE right_route <> :route
    LIMIT :limit
) AS stale
WHERE orchestrator_queue.id = stale.id;
