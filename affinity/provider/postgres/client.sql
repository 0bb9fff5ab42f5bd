-- create: instances with their start messages; those whose id was there are reported to their parents, where asked
WITH wanted AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY instance_id ORDER BY n) AS copy
    FROM unnest(%(instance)s, %(birth)s, %(name)s, %(version)s, %(start)s, %(parent)s, %(parent_birth)s, %(delay)s,
                %(on_exists)s, %(on_deleted)s, %(session)s)
         WITH ORDINALITY AS c (instance_id, birth, name, version, start, parent_id, parent_birth, delay, on_exists,
                               on_deleted, session_id, n)
), created AS (
    INSERT INTO instances (instance_id, birth, name, version, parent_id, parent_birth, on_deleted, session_id, created_at,
        updated_at)
    SELECT instance_id, birth, name, version, parent_id, parent_birth, on_deleted, session_id, (SELECT clock()),
        (SELECT clock())
    FROM wanted WHERE copy = 1 ORDER BY instance_id
    ON CONFLICT (instance_id) DO NOTHING
    RETURNING instance_id
), outcome AS MATERIALIZED (
    SELECT *, (copy = 1 AND instance_id IN (SELECT instance_id FROM created)) IS TRUE AS new FROM wanted
), started AS (
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
    SELECT instance_id, 'new', (SELECT clock()) + delay * interval '1 s', start FROM outcome WHERE new ORDER BY n
), reported AS (
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
    SELECT o.parent_id, r.route, (SELECT clock()), o.on_exists
    FROM outcome o JOIN message_routes r ON r.instance_id = o.parent_id
    WHERE NOT o.new AND o.on_exists IS NOT NULL
    ORDER BY o.n
)
SELECT n FROM outcome WHERE new

-- send: messages for instances that have not finished, nor have as many unread ones as the message allows
WITH message AS MATERIALIZED (
    SELECT m.*, r.route,
        CASE WHEN m.unread_limit IS NOT NULL THEN i.unread + (
            SELECT count(*) FROM (
                SELECT FROM orchestrator_queue q WHERE q.instance_id = m.instance_id AND q.timer_execution IS NULL
                LIMIT m.unread_limit
            ) unread
        ) + row_number() OVER (PARTITION BY m.instance_id, m.unread_limit ORDER BY m.n) > m.unread_limit
        ELSE false END AS full_
    FROM unnest(%(instance)s, %(birth)s, %(payload)s, %(delay)s, %(timer_execution)s, %(timer_id)s, %(unread_limit)s)
         WITH ORDINALITY AS m (instance_id, birth, payload, delay, timer_execution, timer_id, unread_limit, n)
    JOIN instances i ON i.instance_id = m.instance_id AND (m.birth IS NULL OR i.birth = m.birth)
    LEFT JOIN message_routes r ON r.instance_id = m.instance_id
), sent AS (
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
    SELECT m.instance_id, m.route, (SELECT clock()) + m.delay * interval '1 s', m.payload, m.timer_execution, m.timer_id
    FROM message m WHERE m.route IS NOT NULL AND NOT m.full_
    ORDER BY m.n
)
SELECT n, CASE WHEN route IS NULL THEN 'finished' WHEN full_ THEN 'full' ELSE 'delivered' END FROM message

-- get: instances by id
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
    i.owner_worker, i.event_count, i.created_at, i.updated_at, i.birth, i.session_id, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
FROM instances i LEFT JOIN suspensions s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE i.instance_id = ANY (%(instance)s)

-- list: one page of instances, newest first
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
    i.owner_worker, i.event_count, i.created_at, i.updated_at, i.birth, i.session_id, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
FROM instances i LEFT JOIN suspensions s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE (cardinality(%(status)s) = 0 OR i.status = ANY (%(status)s))
  AND (%(name)s::text IS NULL OR i.name = %(name)s)
  AND (%(prefix)s::text IS NULL OR starts_with(i.instance_id, %(prefix)s))
  AND (%(parent)s::text IS NULL OR i.parent_id = %(parent)s)
  AND (%(reason)s::text IS NULL OR s.error_type = %(reason)s)
  AND (%(session)s::text IS NULL OR i.session_id = %(session)s)
  AND (%(after_time)s::timestamptz IS NULL OR (i.created_at, i.instance_id) < (%(after_time)s, %(after_id)s))
ORDER BY i.created_at DESC, i.instance_id DESC LIMIT %(limit)s

-- delete: instances with all their rows
SELECT root, doomed FROM delete_instances_1(%(instance)s, %(force)s, %(tree)s)

-- list_sessions: one page of sessions by id
SELECT s.session_id, s.worker_id, s.incarnation, s.epoch,
    EXISTS (SELECT FROM held_sessions h WHERE h.session_id = s.session_id),
    extract(epoch FROM s.locked_until - clock())::float8, extract(epoch FROM clock() - s.touched_at)::float8,
    (SELECT count(*) FROM worker_queue q WHERE q.session_id = s.session_id)
FROM sessions s WHERE %(after)s::text IS NULL OR s.session_id > %(after)s
ORDER BY s.session_id LIMIT %(limit)s

-- count: rows by kind
SELECT (SELECT count(*) FROM worker_queue), (SELECT count(*) FROM orchestrator_queue), (SELECT count(*) FROM sessions),
    (SELECT count(*) FROM workers), (SELECT count(*) FROM instances)
