-- origins: of the events of one execution, where their rows have any
SELECT event_id, recorded_at, recorded_events, recorded_by, run_by, attempt, queued_for FROM history
WHERE instance_id = %(instance)s AND execution_id = %(execution)s
  AND (recorded_at IS NOT NULL OR attempt IS NOT NULL)
ORDER BY event_id

-- size: of one instance
SELECT h.executions, h.events, h.bytes, m.messages, m.bytes, w.items, w.bytes, v."values", i.value_bytes
FROM instances i
CROSS JOIN LATERAL (
    SELECT count(DISTINCT execution_id) AS executions, count(*) AS events, coalesce(sum(octet_length(event)), 0)::bigint AS bytes
    FROM history h WHERE h.instance_id = i.instance_id
) h
CROSS JOIN LATERAL (
    SELECT count(*) AS messages, coalesce(sum(octet_length(payload)), 0)::bigint AS bytes
    FROM orchestrator_queue o WHERE o.instance_id = i.instance_id
) m
CROSS JOIN LATERAL (
    SELECT count(*) AS items, coalesce(sum(octet_length(payload)), 0)::bigint AS bytes
    FROM worker_queue q WHERE q.instance_id = i.instance_id
) w
CROSS JOIN LATERAL (SELECT count(*) AS "values" FROM instance_values v WHERE v.instance_id = i.instance_id) v
WHERE i.instance_id = %(instance)s

-- item: of a work item q, of its tag t, and of the live worker w that runs it
SELECT q.instance_id, q.visible_at > clock(), q.route = 'blocked', q.limited IS TRUE AND q.route IN ('gate', 'gated'), q.execution_id,
    q.activity_id, q.name, coalesce(q.session_id, q.gate_session, q.order_session), w.worker_id, q.attempts, q.failures,
    q.enqueued_at, q.visible_at, q.last_error, CASE WHEN w.worker_id IS NOT NULL THEN coalesce(q.locked_at, q.enqueued_at) END,
    coalesce(t.tag, q.tag),
    t.tag IS NULL OR EXISTS (SELECT FROM workers a WHERE a.locked_until > clock() AND a.tags && ARRAY[t.tag, 'any']),
    extract(epoch FROM clock()
        - CASE WHEN w.worker_id IS NULL THEN q.visible_at ELSE coalesce(q.locked_at, q.enqueued_at) END)::float8

-- runner: its tag, and the live worker that runs it
CROSS JOIN LATERAL (
    -- At its gate, only what no worker has taken is known to wait for one.
    SELECT coalesce(substring(q.route FROM '^(?:free|new)#(.*)$'), CASE WHEN q.passed_over IS NOT NULL THEN q.tag END) AS tag) t
LEFT JOIN alive_workers w
    ON w.worker_id = q.lock_worker AND w.incarnation = q.lock_incarnation AND q.locked_until > clock()

-- work_items: of one instance
-- include item
FROM worker_queue q
-- include runner
WHERE q.instance_id = %(instance)s
ORDER BY q.execution_id, q.activity_id LIMIT %(limit)s

-- queue: items of a part of the queue (parts `retried`, `delayed`, `blocked`, `limited`), those that can be fetched first
-- [delayed
-- include routes
-- delayed]
-- include item
FROM (
-- [retried
    SELECT * FROM worker_queue WHERE failures > 0 ORDER BY visible_at LIMIT %(limit)s
-- retried]
-- [delayed
    SELECT q.* FROM item_route r CROSS JOIN LATERAL (
        SELECT * FROM worker_queue q WHERE q.route = r.name AND q.visible_at > (SELECT clock())
        ORDER BY q.visible_at LIMIT 10 * %(limit)s
    ) q WHERE r.name NOT IN ('blocked', 'gate', 'gated') AND q.failures = 0 ORDER BY q.visible_at LIMIT %(limit)s
-- delayed]
-- [blocked
    SELECT * FROM worker_queue WHERE route = 'blocked' ORDER BY visible_at LIMIT %(limit)s
-- blocked]
-- [limited
    SELECT q.* FROM unnest(ARRAY['gate', 'gated']) AS r (name) CROSS JOIN LATERAL (
        SELECT * FROM worker_queue q WHERE q.route = r.name ORDER BY q.visible_at LIMIT %(limit)s
    ) q ORDER BY q.visible_at LIMIT %(limit)s
-- limited]
) q
-- include runner
ORDER BY q.visible_at

-- executions: of one instance, newest first, found one by one in the index
WITH RECURSIVE instance AS MATERIALIZED (
    SELECT instance_id, execution_id, created_at FROM instances WHERE instance_id = %(instance)s
), run (execution_id, n) AS (
    SELECT CASE WHEN %(before)s::bigint IS NULL OR i.execution_id < %(before)s THEN i.execution_id
                ELSE (SELECT max(h.execution_id) FROM history h
                      WHERE h.instance_id = %(instance)s AND h.execution_id < %(before)s) END, 1
    FROM instance i
    UNION ALL
    SELECT (SELECT max(h.execution_id) FROM history h
            WHERE h.instance_id = %(instance)s AND h.execution_id < r.execution_id), r.n + 1
    FROM run r WHERE r.execution_id IS NOT NULL AND r.n < %(limit)s
)
SELECT r.execution_id, coalesce(l.event_id, 0),
    CASE WHEN r.execution_id = 1 THEN i.created_at ELSE coalesce(p.ended_at, f.recorded_at) END, e.ended_at, l.head
FROM run r CROSS JOIN instance i
LEFT JOIN LATERAL (
    SELECT h.event_id, left(h.event, %(head)s) AS head FROM history h
    WHERE h.instance_id = i.instance_id AND h.execution_id = r.execution_id
    ORDER BY h.event_id DESC LIMIT 1
) l ON true
LEFT JOIN history f ON f.instance_id = i.instance_id AND f.execution_id = r.execution_id AND f.event_id = 1
LEFT JOIN ended_executions e ON e.instance_id = i.instance_id AND e.execution_id = r.execution_id
LEFT JOIN ended_executions p ON p.instance_id = i.instance_id AND p.execution_id = r.execution_id - 1
WHERE r.execution_id IS NOT NULL
ORDER BY r.n

-- tree: an instance, its children and theirs
WITH RECURSIVE tree (instance_id, generation) AS (
    SELECT instance_id, generation FROM instances WHERE instance_id = %(instance)s
    UNION
    SELECT c.instance_id, c.generation FROM tree t JOIN instances c ON c.parent_id = t.instance_id
    WHERE c.parent_generation IS NULL OR c.parent_generation = t.generation
), member AS MATERIALIZED (
    SELECT instance_id FROM tree LIMIT %(limit)s
)
SELECT i.instance_id, i.parent_id, i.name, i.version, i.status, i.execution_id, i.created_at, i.updated_at
FROM member JOIN instances i USING (instance_id)

-- routes: of both queues, found one by one in the index
WITH RECURSIVE item_route (name) AS (
    (SELECT route FROM worker_queue ORDER BY route LIMIT 1)
    UNION ALL
    SELECT (SELECT q.route FROM worker_queue q WHERE q.route > r.name ORDER BY q.route LIMIT 1)
    FROM item_route r WHERE r.name IS NOT NULL
), message_route (name) AS (
    (SELECT route FROM orchestrator_queue ORDER BY route LIMIT 1)
    UNION ALL
    SELECT (SELECT q.route FROM orchestrator_queue q WHERE q.route > r.name ORDER BY q.route LIMIT 1)
    FROM message_route r WHERE r.name IS NOT NULL
)

-- measure: both queues, and instances that wait for an operator
-- Along each route no more rows are read than are counted.
-- include routes
, item AS MATERIALIZED (
    SELECT q.running
    FROM item_route r CROSS JOIN LATERAL (
        SELECT q.lock_token IS NOT NULL AND q.locked_until > clock() AND EXISTS (
            SELECT FROM alive_workers w WHERE w.worker_id = q.lock_worker AND w.incarnation = q.lock_incarnation)
            AS running
        FROM worker_queue q WHERE q.route = r.name AND q.visible_at <= (SELECT clock())
        ORDER BY q.visible_at LIMIT %(limit)s
    ) q WHERE r.name NOT IN ('blocked', 'gate', 'gated') LIMIT %(limit)s
), oldest_item AS MATERIALIZED (
    -- Work with a priority is visible since before it was queued.
    SELECT r.name, q.visible_at
    FROM item_route r CROSS JOIN LATERAL (
        SELECT greatest(q.visible_at, q.enqueued_at) AS visible_at FROM deliverable_items q WHERE q.route = r.name
        ORDER BY q.visible_at LIMIT 1
    ) q WHERE r.name NOT IN ('blocked', 'gate', 'gated')
)
SELECT
    (SELECT count(*) FROM (
        SELECT FROM suspensions WHERE resumed_at IS NULL ORDER BY suspended_at LIMIT %(limit)s) s),
    (SELECT count(*) FILTER (WHERE p.parked) FROM (SELECT parked FROM parked_items ORDER BY instance_id LIMIT %(limit)s) p),
    (SELECT count(*) FROM item WHERE running), (SELECT count(*) FROM item WHERE NOT running),
    (SELECT count(*) FROM (
        SELECT FROM item_route r CROSS JOIN LATERAL (
            SELECT FROM worker_queue q WHERE q.route = r.name AND q.visible_at > (SELECT clock())
            ORDER BY q.visible_at LIMIT %(limit)s
        ) q WHERE r.name NOT IN ('blocked', 'gate', 'gated') LIMIT %(limit)s) q),
    (SELECT count(*) FROM (
        SELECT FROM worker_queue q WHERE q.route = 'blocked' ORDER BY q.visible_at LIMIT %(limit)s) q),
    (SELECT count(*) FROM (
        SELECT FROM message_route r CROSS JOIN LATERAL (
            SELECT FROM orchestrator_queue q WHERE q.route = r.name AND q.visible_at <= (SELECT clock())
            ORDER BY q.visible_at LIMIT %(limit)s
        ) q WHERE r.name NOT IN ('suspended', 'gate', 'gated') LIMIT %(limit)s) q),
    (SELECT count(*) FROM (
        SELECT FROM message_route r CROSS JOIN LATERAL (
            SELECT FROM orchestrator_queue q WHERE q.route = r.name AND q.visible_at > (SELECT clock())
            ORDER BY q.visible_at LIMIT %(limit)s
        ) q WHERE r.name NOT IN ('suspended', 'gate', 'gated') LIMIT %(limit)s) q),
    (SELECT count(*) FROM (
        SELECT FROM orchestrator_queue q WHERE q.route = 'suspended' ORDER BY q.visible_at LIMIT %(limit)s) q),
    (SELECT count(DISTINCT q.session_id) FROM (
        SELECT q.session_id FROM item_route r CROSS JOIN LATERAL (
            SELECT q.session_id FROM worker_queue q WHERE q.route = r.name AND q.visible_at <= (SELECT clock())
            ORDER BY q.visible_at LIMIT %(limit)s
        ) q WHERE r.name >= 'new' AND r.name < 'new;' LIMIT %(limit)s) q),
    (SELECT extract(epoch FROM clock() - min(visible_at))::float8 FROM oldest_item),
    (SELECT extract(epoch FROM clock() - min(visible_at))::float8 FROM oldest_item WHERE name >= 'new' AND name < 'new;'),
    -- Messages that a reset put before all others have no time.
    (SELECT extract(epoch FROM clock() - min(CASE WHEN i.status = 'pending' THEN greatest(q.visible_at, i.updated_at)
                                                  ELSE q.visible_at END))::float8
     FROM message_route r CROSS JOIN LATERAL (
        SELECT q.instance_id, q.visible_at FROM orchestrator_queue q
        WHERE q.route = r.name AND q.visible_at <= (SELECT clock()) AND q.visible_at > to_timestamp(0)
        ORDER BY q.visible_at LIMIT 1) q LEFT JOIN instances i USING (instance_id)
     WHERE r.name NOT IN ('suspended', 'gate', 'gated'))
    -- columns of guests

-- waiting_work: that any worker may take, of so many rows of each route; what a reset put ahead of all others has no time
-- include routes
SELECT 'activities', q.name, substring(r.name FROM '^(?:free|new)#(.*)$'), count(*), min(q.visible_at), min(q.instance_id)
FROM item_route r CROSS JOIN LATERAL (
    SELECT q.name, greatest(q.visible_at, q.enqueued_at) AS visible_at, q.instance_id FROM deliverable_items q WHERE q.route = r.name
    ORDER BY q.visible_at LIMIT %(limit)s
) q
WHERE r.name IN ('free', 'new') OR r.name >= 'free#' AND r.name < 'free$' OR r.name >= 'new#' AND r.name < 'new$'
GROUP BY q.name, r.name
UNION ALL
SELECT 'orchestrations', i.name || coalesce('@' || i.version, ''), NULL, count(*),
    min(q.visible_at) FILTER (WHERE q.visible_at > to_timestamp(0)), min(i.instance_id)
FROM (
    SELECT q.instance_id, q.visible_at FROM orchestrator_queue q
    WHERE q.route = 'new' AND q.visible_at <= (SELECT clock())
    ORDER BY q.visible_at LIMIT %(limit)s
) q JOIN instances i USING (instance_id)
GROUP BY i.name, i.version

-- count_instances: one page of instances, by status, with the last id
WITH page AS MATERIALIZED (
    SELECT i.instance_id, i.status FROM instances i WHERE i.instance_id > %(after)s
    ORDER BY i.instance_id LIMIT %(limit)s
)
SELECT p.status, count(*), (SELECT max(instance_id) FROM page) FROM page p GROUP BY p.status

-- count_statuses: instances up to a limit, from what has not ended, what has, and what is suspended
-- More than twice the limit of live, failed or cancelled instances are not counted. Completed instances are those of all
-- ended ones that are neither failed nor cancelled; if these two were not counted to their end, those among the newest.
WITH live AS MATERIALIZED (
    SELECT i.status FROM instances i WHERE i.output IS NULL AND i.error IS NULL
    ORDER BY i.created_at, i.instance_id LIMIT 2 * %(limit)s + 1
), other AS MATERIALIZED (
    SELECT (SELECT count(*) FROM (
            SELECT FROM instances_by_status r WHERE r.status = 'failed' ORDER BY r.created_at LIMIT 2 * %(limit)s + 1) r) AS failed,
        (SELECT count(*) FROM (
            SELECT FROM instances_by_status r WHERE r.status = 'cancelled' ORDER BY r.created_at LIMIT 2 * %(limit)s + 1) r) AS cancelled,
        (SELECT count(*) FROM (
            SELECT FROM instances_by_status r WHERE r.status = 'suspended' ORDER BY r.created_at LIMIT %(limit)s + 1) r) AS suspended
)
SELECT (SELECT count(*) FROM live WHERE status = 'pending'), (SELECT count(*) FROM live WHERE status = 'running'),
    (SELECT count(*) FROM live), failed, cancelled, suspended,
    CASE WHEN failed <= 2 * %(limit)s AND cancelled <= 2 * %(limit)s THEN
        (SELECT count(*) FROM (
            SELECT FROM ended_executions e WHERE e.is_last ORDER BY e.ended_at
            LIMIT (SELECT failed + cancelled FROM other) + %(limit)s + 1) e) - failed - cancelled
    ELSE (SELECT count(*) FROM (
            SELECT i.status FROM instances i ORDER BY i.created_at DESC, i.instance_id DESC LIMIT %(limit)s + 1) n WHERE status = 'completed') END
FROM other
