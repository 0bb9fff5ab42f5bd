-- send: queue a message, unless its instance is missing or has finished
INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
SELECT i.instance_id, CASE WHEN w.worker_id IS NULL THEN 'new' ELSE 'w:' || w.worker_id END,
       :now + :delay, :payload, :timer_execution, :timer_id
FROM instances AS i
LEFT JOIN workers AS w
    ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation AND w.locked_until > :now
WHERE i.instance_id = :instance_id AND i.status NOT IN ('completed', 'failed', 'cancelled');

-- create: an instance, unless its id is taken
INSERT INTO instances (instance_id, name, version, parent_id, created_at, updated_at)
VALUES (:instance_id, :name, :version, :parent_id, :now, :now)
ON CONFLICT (instance_id) DO NOTHING;

-- status: how far an instance is
SELECT status FROM instances WHERE instance_id = :instance_id;

-- reroute_instance: re-mark the messages of an instance
UPDATE orchestrator_queue SET route = :route WHERE id IN (
    SELECT id FROM orchestrator_queue WHERE instance_id = :instance_id AND route <> :route LIMIT :limit
);

-- reroute_messages: re-mark messages that are marked for a worker that does not own their instance
UPDATE orchestrator_queue SET route = stale.truth
FROM (
    SELECT id, truth FROM (
        SELECT q.id, CASE WHEN w.worker_id IS NULL THEN 'new' ELSE 'w:' || w.worker_id END AS truth
        FROM orchestrator_queue AS q
        JOIN instances AS i ON i.instance_id = q.instance_id
        LEFT JOIN workers AS w
            ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation AND w.locked_until > :now
        WHERE q.route = :route
    )
    WHERE truth <> :route
    LIMIT :limit
) AS stale
WHERE orchestrator_queue.id = stale.id;
