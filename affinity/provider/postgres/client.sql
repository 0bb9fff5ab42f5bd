-- create: instances with their start messages; those whose id was there are reported to their parents, where asked
WITH wanted AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY instance_id ORDER BY n) AS copy
    FROM unnest(%(instance)s, %(birth)s, %(name)s, %(version)s, %(start)s, %(parent)s, %(delay)s, %(on_exists)s)
         WITH ORDINALITY AS c (instance_id, birth, name, version, start, parent_id, delay, on_exists, n)
), created AS (
    INSERT INTO instances (instance_id, birth, name, version, parent_id, created_at, updated_at)
    SELECT instance_id, birth, name, version, parent_id, (SELECT clock()), (SELECT clock())
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

-- send: messages for instances that have not finished
WITH message AS MATERIALIZED (
    SELECT m.*, r.route
    FROM unnest(%(instance)s, %(birth)s, %(payload)s, %(delay)s, %(timer_execution)s, %(timer_id)s)
         WITH ORDINALITY AS m (instance_id, birth, payload, delay, timer_execution, timer_id, n)
    JOIN instances i ON i.instance_id = m.instance_id AND (m.birth IS NULL OR i.birth = m.birth)
    LEFT JOIN message_routes r ON r.instance_id = m.instance_id
), sent AS (
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
    SELECT m.instance_id, m.route, (SELECT clock()) + m.delay * interval '1 s', m.payload, m.timer_execution, m.timer_id
    FROM message m WHERE m.route IS NOT NULL
    ORDER BY m.n
)
SELECT n, route IS NOT NULL FROM message

-- get: instances by id
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
    i.owner_worker, i.event_count, i.created_at, i.updated_at, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
FROM instances i LEFT JOIN suspensions s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE i.instance_id = ANY (%(instance)s)

-- list: one page of instances, newest first
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
    i.owner_worker, i.event_count, i.created_at, i.updated_at, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
FROM instances i LEFT JOIN suspensions s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE (cardinality(%(status)s) = 0 OR i.status = ANY (%(status)s))
  AND (%(name)s::text IS NULL OR i.name = %(name)s)
  AND (%(prefix)s::text IS NULL OR starts_with(i.instance_id, %(prefix)s))
  AND (%(parent)s::text IS NULL OR i.parent_id = %(parent)s)
  AND (%(reason)s::text IS NULL OR s.error_type = %(reason)s)
  AND (%(after_time)s::timestamptz IS NULL OR (i.created_at, i.instance_id) < (%(after_time)s, %(after_id)s))
ORDER BY i.created_at DESC, i.instance_id DESC LIMIT %(limit)s

-- delete: finished instances, or any by force, with all their rows; what they hold is cut back as in a commit
WITH found AS MATERIALIZED (
    SELECT i.instance_id, %(force)s OR i.status NOT IN ('pending', 'running', 'suspended') AS doomed
    FROM instances i WHERE i.instance_id = ANY (%(instance)s)
    ORDER BY i.instance_id FOR UPDATE
), items AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id
    FROM worker_queue q WHERE q.instance_id = ANY (ARRAY (SELECT instance_id FROM found WHERE doomed))
    ORDER BY q.instance_id, q.execution_id, q.activity_id FOR UPDATE
), holds AS MATERIALIZED (
    SELECT h.session_id, max(h.session_lock) AS session_lock
    FROM session_holds h WHERE h.instance_id = ANY (ARRAY (SELECT instance_id FROM found WHERE doomed))
    GROUP BY h.session_id
), pinned AS MATERIALIZED (
    SELECT s.session_id, s.locked_until, h.session_lock FROM holds h JOIN sessions s USING (session_id)
    WHERE (SELECT count(*) FROM items) >= 0 -- always true: it makes the items come first
    ORDER BY s.session_id FOR NO KEY UPDATE OF s
), holds_removed AS (
    DELETE FROM session_holds h
    WHERE h.instance_id = ANY (ARRAY (SELECT instance_id FROM found WHERE doomed))
      AND (SELECT count(*) FROM pinned) >= 0
    RETURNING h.session_id
), freed AS MATERIALIZED (
    SELECT session_id, latest_hold(session_id) AS until FROM (SELECT DISTINCT session_id FROM holds_removed) r
), cut_back AS (
    UPDATE sessions s
    SET locked_until = least(p.locked_until, greatest(clock() + p.session_lock * interval '1 s', f.until))
    FROM pinned p JOIN freed f ON f.session_id = p.session_id
    WHERE s.session_id = p.session_id
), watches_removed AS (
    DELETE FROM session_watches WHERE instance_id = ANY (ARRAY (SELECT instance_id FROM found WHERE doomed))
), items_removed AS (
    DELETE FROM worker_queue q USING items x
    WHERE q.instance_id = x.instance_id AND q.execution_id = x.execution_id AND q.activity_id = x.activity_id
), messages_removed AS (
    DELETE FROM orchestrator_queue WHERE instance_id = ANY (ARRAY (SELECT instance_id FROM found WHERE doomed))
), history_removed AS (
    DELETE FROM history WHERE instance_id = ANY (ARRAY (SELECT instance_id FROM found WHERE doomed))
), suspension_removed AS (
    DELETE FROM suspensions WHERE instance_id = ANY (ARRAY (SELECT instance_id FROM found WHERE doomed))
), removed AS (
    DELETE FROM instances WHERE instance_id = ANY (ARRAY (SELECT instance_id FROM found WHERE doomed))
)
SELECT instance_id, doomed FROM found

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
