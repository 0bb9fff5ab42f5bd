-- origins: of the events of one execution, where their rows have any
SELECT event_id, recorded_at, recorded_events, recorded_by, run_by, attempt, queued_for FROM history
WHERE instance_id = :instance_id AND execution_id = :execution_id AND (recorded_at IS NOT NULL OR attempt IS NOT NULL)
ORDER BY event_id;

-- size: of one instance
SELECT
    (SELECT count(DISTINCT execution_id) FROM history WHERE instance_id = :instance_id),
    (SELECT count(*) FROM history WHERE instance_id = :instance_id),
    (SELECT coalesce(sum(length(CAST(event AS BLOB))), 0) FROM history WHERE instance_id = :instance_id),
    (SELECT count(*) FROM orchestrator_queue WHERE instance_id = :instance_id),
    (SELECT coalesce(sum(length(CAST(payload AS BLOB))), 0) FROM orchestrator_queue WHERE instance_id = :instance_id),
    (SELECT count(*) FROM worker_queue WHERE instance_id = :instance_id),
    (SELECT coalesce(sum(length(CAST(payload AS BLOB))), 0) FROM worker_queue WHERE instance_id = :instance_id),
    (SELECT count(*) FROM instance_values WHERE instance_id = :instance_id),
    value_bytes
FROM instances WHERE instance_id = :instance_id;

-- item: of a work item q, and of the live worker w that runs it
SELECT q.instance_id, q.visible_at > :now, q.route = 'blocked', q.limited IS 1 AND q.route IN ('gate', 'gated'), q.execution_id,
       q.activity_id, q.name, coalesce(q.session_id, q.gate_session, q.order_session), w.worker_id, q.attempts, q.failures,
       q.enqueued_at, q.visible_at, q.last_error, iif(w.worker_id IS NULL, NULL, coalesce(q.locked_at, q.enqueued_at)),
       coalesce(q.route_tag, q.tag), q.route_tag IS NULL OR EXISTS (
           SELECT 1 FROM workers AS a, json_each(a.tags) AS has WHERE a.locked_until > :now AND has.value IN (q.route_tag, 'any')),
       :now - iif(w.worker_id IS NULL, q.visible_at, coalesce(q.locked_at, q.enqueued_at))
FROM (
    -- At its gate, only what no worker has taken is known to wait for one.
    SELECT *, CASE WHEN route GLOB 'free#*' OR route GLOB 'new#*' THEN substr(route, instr(route, '#') + 1)
                   WHEN passed_over IS NOT NULL THEN tag END AS route_tag

-- runner: the live worker that runs a work item q
LEFT JOIN workers AS w
    ON w.worker_id = q.lock_worker AND w.incarnation = q.lock_incarnation AND w.locked_until > :now
    AND q.locked_until > :now

-- work_items: of one instance
-- include item
    FROM worker_queue WHERE instance_id = :instance_id
) AS q
-- include runner
ORDER BY q.execution_id, q.activity_id
LIMIT :limit;

-- retried_items: that have failed before, of all instances
-- include item
    FROM worker_queue INDEXED BY worker_queue_failed WHERE failures > 0 ORDER BY visible_at LIMIT :limit
) AS q
-- include runner
ORDER BY q.visible_at;

-- route_items: of one route; part `later`: those that can be fetched later and have not failed
-- include item
    FROM worker_queue WHERE route = :route
-- [later
      AND visible_at > :now
-- later]
    ORDER BY visible_at LIMIT :limit
) AS q
-- include runner
-- [later
WHERE q.failures = 0
-- later]
ORDER BY q.visible_at;

-- count_parked: parked items
SELECT count(*) FROM (SELECT 1 FROM parked_items LIMIT :limit);

-- executions: of one instance, newest first, found one by one in the index
WITH RECURSIVE run (execution_id) AS (
    SELECT iif(:before IS NULL OR i.execution_id < :before, i.execution_id,
               (SELECT max(h.execution_id) FROM history AS h
                WHERE h.instance_id = :instance_id AND h.execution_id < :before))
    FROM instances AS i WHERE i.instance_id = :instance_id
    UNION ALL
    SELECT (SELECT max(h.execution_id) FROM history AS h
            WHERE h.instance_id = :instance_id AND h.execution_id < run.execution_id)
    FROM run WHERE run.execution_id IS NOT NULL
    LIMIT :limit
)
SELECT r.execution_id, coalesce(l.event_id, 0),
       iif(r.execution_id = 1, i.created_at, coalesce(p.ended_at, f.recorded_at)), e.ended_at, substr(l.event, 1, :head)
FROM run AS r
CROSS JOIN instances AS i ON i.instance_id = :instance_id
LEFT JOIN history AS l
    ON l.instance_id = i.instance_id AND l.execution_id = r.execution_id
    AND l.event_id = (SELECT max(h.event_id) FROM history AS h
                      WHERE h.instance_id = i.instance_id AND h.execution_id = r.execution_id)
LEFT JOIN history AS f ON f.instance_id = i.instance_id AND f.execution_id = r.execution_id AND f.event_id = 1
LEFT JOIN ended_executions AS e ON e.instance_id = i.instance_id AND e.execution_id = r.execution_id
LEFT JOIN ended_executions AS p ON p.instance_id = i.instance_id AND p.execution_id = r.execution_id - 1
WHERE r.execution_id IS NOT NULL
ORDER BY r.execution_id DESC;

-- tree: an instance, its children and theirs
WITH RECURSIVE tree (instance_id, generation) AS (
    SELECT instance_id, generation FROM instances WHERE instance_id = :instance_id
    UNION
    SELECT c.instance_id, c.generation
    FROM tree AS t CROSS JOIN instances AS c ON c.parent_id = t.instance_id
    WHERE c.parent_generation IS NULL OR c.parent_generation = t.generation
    LIMIT :limit
)
SELECT i.instance_id, i.parent_id, i.name, i.version, i.status, i.execution_id, i.created_at, i.updated_at
FROM tree AS t CROSS JOIN instances AS i ON i.instance_id = t.instance_id;

-- count_instances: one page of instances, by status, with the last id
WITH page AS MATERIALIZED (
    SELECT instance_id, status FROM instances WHERE instance_id > :after ORDER BY instance_id LIMIT :limit
)
SELECT status, count(*), (SELECT max(instance_id) FROM page) FROM page GROUP BY status;

-- count_statuses: instances up to a limit, from what has not ended, what has, and what is suspended
-- The conditions of partial indexes are repeated, or they are not used. More than twice the limit of live, failed or cancelled instances are not counted. Completed instances are those of all
-- ended ones that are neither failed nor cancelled; if these two were not counted to their end, those among the newest.
WITH live AS MATERIALIZED (
    SELECT i.status FROM instances AS i INDEXED BY instances_live WHERE i.output IS NULL AND i.error IS NULL
    ORDER BY i.created_at, i.instance_id LIMIT 2 * :limit + 1
), other AS MATERIALIZED (
    SELECT (SELECT count(*) FROM (SELECT 1 FROM instances INDEXED BY instances_by_status
            WHERE status = 'failed' AND status IN ('suspended', 'failed', 'cancelled') LIMIT 2 * :limit + 1)) AS failed,
        (SELECT count(*) FROM (SELECT 1 FROM instances INDEXED BY instances_by_status
            WHERE status = 'cancelled' AND status IN ('suspended', 'failed', 'cancelled') LIMIT 2 * :limit + 1)) AS cancelled,
        (SELECT count(*) FROM (SELECT 1 FROM instances INDEXED BY instances_by_status
            WHERE status = 'suspended' AND status IN ('suspended', 'failed', 'cancelled') LIMIT :limit + 1)) AS suspended
)
SELECT (SELECT count(*) FROM live WHERE status = 'pending'), (SELECT count(*) FROM live WHERE status = 'running'),
    (SELECT count(*) FROM live), failed, cancelled, suspended,
    CASE WHEN failed <= 2 * :limit AND cancelled <= 2 * :limit THEN
        (SELECT count(*) FROM (
            SELECT 1 FROM ended_executions INDEXED BY ended_instances WHERE is_last
            LIMIT (SELECT failed + cancelled FROM other) + :limit + 1)) - failed - cancelled
    ELSE (SELECT count(*) FROM (
            SELECT status FROM instances INDEXED BY instances_by_age
            ORDER BY created_at DESC, instance_id DESC LIMIT :limit + 1) WHERE status = 'completed') END
FROM other;

-- count_suspended: instances that wait for an operator
SELECT count(*) FROM (SELECT 1 FROM suspensions WHERE resumed_at IS NULL LIMIT :limit);

-- visible_items: of one route: how many a live worker has, how many wait, and since when the oldest of these could be fetched
-- Work with a priority is visible since before it was queued.
SELECT coalesce(sum(running), 0), coalesce(sum(NOT running), 0), min(iif(running, NULL, since))
FROM (
    SELECT max(visible_at, enqueued_at) AS since, lock_token IS NOT NULL AND locked_until > :now
                       AND lock_incarnation IN (SELECT incarnation FROM workers WHERE locked_until > :now) AS running
    FROM worker_queue WHERE route = :route AND visible_at <= :now
    ORDER BY visible_at
    LIMIT :limit
);

-- waiting_sessions: of one route, among so many items
SELECT json_group_array(DISTINCT session_id) FROM (
    SELECT session_id FROM worker_queue WHERE route = :route AND visible_at <= :now LIMIT :limit
);

-- waiting_items: of one route, that no live worker has locked, by name
SELECT 'activities', name, :tag, count(*), min(since), min(instance_id) FROM (
    SELECT name, max(visible_at, enqueued_at) AS since, instance_id FROM worker_queue
    WHERE route = :route AND visible_at <= :now AND (lock_token IS NULL OR limited IS NOT 1 AND (locked_until <= :now
          OR lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now)))
    ORDER BY visible_at LIMIT :limit
) GROUP BY name;

-- waiting_messages: that any worker may take, by the orchestration of the instance
SELECT 'orchestrations', i.name || coalesce('@' || i.version, ''), NULL, count(*),
       min(oldest.visible_at) FILTER (WHERE oldest.visible_at > 0.0), min(i.instance_id)
FROM (
    SELECT instance_id, visible_at FROM orchestrator_queue WHERE route = :route AND visible_at <= :now
    ORDER BY visible_at LIMIT :limit
) AS oldest JOIN instances AS i USING (instance_id)
GROUP BY i.name, i.version;

-- later_items: of one route
SELECT count(*) FROM (SELECT 1 FROM worker_queue WHERE route = :route AND visible_at > :now LIMIT :limit);

-- visible_messages: of one route; what a reset put ahead of all others has no time
SELECT (SELECT count(*) FROM (
            SELECT 1 FROM orchestrator_queue WHERE route = :route AND visible_at <= :now LIMIT :limit)),
       (SELECT iif(i.status = 'pending', max(q.visible_at, i.updated_at), q.visible_at)
        FROM orchestrator_queue AS q LEFT JOIN instances AS i USING (instance_id)
        WHERE q.route = :route AND q.visible_at > 0.0 AND q.visible_at <= :now ORDER BY q.visible_at LIMIT 1);

-- later_messages: of one route
SELECT count(*) FROM (SELECT 1 FROM orchestrator_queue WHERE route = :route AND visible_at > :now LIMIT :limit);

