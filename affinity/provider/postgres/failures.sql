-- shown: the columns of a listing
f.instance_id, f.execution_id, f.activity_id, f.attempt, f.kind, f.name, f.error_type, f.is_retried, f.failed_at, f.error

-- attempts: the last ones of an execution, with their stacks
SELECT * FROM (
    SELECT
        -- include shown
        , f.stack
    FROM failures f
    WHERE f.instance_id = %(instance)s AND f.execution_id = %(execution)s AND f.kind = 'activity'
    ORDER BY f.failed_at DESC, f.activity_id DESC, f.attempt DESC LIMIT %(limit)s
) a ORDER BY failed_at, activity_id, attempt

-- list_failures: a page, newest first
-- Parts: the conditions that are asked for.
SELECT
    -- include shown
    , NULL
FROM failures f
WHERE f.failed_at >= (SELECT clock() - %(seconds)s * interval '1 s')
-- [name
  AND f.kind = %(kind)s AND f.name = %(name)s
-- name]
-- [error_type
  AND f.kind = %(kind)s AND f.name = %(name)s AND f.error_type = %(error_type)s
-- error_type]
-- [after
  AND f.failed_at <= %(at)s
  AND (f.failed_at, f.instance_id, f.execution_id, f.activity_id, f.attempt)
    < (%(at)s, %(after_instance)s, %(after_execution)s, %(after_activity)s, %(after_attempt)s)
-- after]
ORDER BY f.failed_at DESC, f.instance_id DESC, f.execution_id DESC, f.activity_id DESC, f.attempt DESC LIMIT %(limit)s

-- list_suspended: a page of the instances that are suspended, newest first, with the columns of `list_failures`
-- Parts: as in `list_failures`.
SELECT s.instance_id, s.execution_id, 0, 0, 'suspension', s.name, s.error_type, false, s.suspended_at, s.message, NULL
FROM suspensions s
WHERE s.resumed_at IS NULL
-- [name
  AND s.name = %(name)s
-- name]
-- [error_type
  AND s.name = %(name)s AND s.error_type = %(error_type)s
-- error_type]
-- [after
  AND s.suspended_at <= %(at)s
  AND (s.suspended_at, s.instance_id, s.execution_id, 0::bigint, 0::bigint)
    < (%(at)s, %(after_instance)s, %(after_execution)s, %(after_activity)s, %(after_attempt)s)
-- after]
ORDER BY s.suspended_at DESC, s.instance_id DESC LIMIT %(limit)s

-- groups: by kind, name and class, found one by one in the index; of each its newest rows, and the first of the time
WITH RECURSIVE named (kind, name, error_type) AS (
    (SELECT kind, name, error_type FROM failures ORDER BY kind, name, error_type LIMIT 1)
    UNION ALL
    SELECT n.kind, n.name, n.error_type FROM named g CROSS JOIN LATERAL (
        SELECT f.kind, f.name, f.error_type FROM failures f
        WHERE (f.kind, f.name, f.error_type) > (g.kind, g.name, g.error_type)
        ORDER BY f.kind, f.name, f.error_type LIMIT 1
    ) n
), since AS MATERIALIZED (
    SELECT clock() - %(seconds)s * interval '1 s' AS at
)
SELECT g.kind, g.name, g.error_type, m.number, m.instances, (
    SELECT f.failed_at FROM failures f
    WHERE f.kind = g.kind AND f.name = g.name AND f.error_type = g.error_type AND f.failed_at >= (SELECT at FROM since)
    ORDER BY f.failed_at LIMIT 1
), m.last_at, l.instance_id, l.error
FROM (SELECT * FROM named LIMIT %(groups)s) g CROSS JOIN LATERAL (
    SELECT count(*) AS number, count(DISTINCT r.instance_id) AS instances, max(r.failed_at) AS last_at FROM (
        SELECT f.instance_id, f.failed_at FROM failures f
        WHERE f.kind = g.kind AND f.name = g.name AND f.error_type = g.error_type AND f.failed_at >= (SELECT at FROM since)
        ORDER BY f.failed_at DESC LIMIT %(limit)s
    ) r
) m LEFT JOIN LATERAL (
    SELECT f.instance_id, f.error FROM failures f
    WHERE f.kind = g.kind AND f.name = g.name AND f.error_type = g.error_type AND f.failed_at >= (SELECT at FROM since)
    ORDER BY f.failed_at DESC, f.instance_id DESC LIMIT 1
) l ON true

-- groups_suspended: the same of the instances that are suspended
WITH RECURSIVE named (name, error_type) AS (
    (SELECT name, error_type FROM suspensions WHERE resumed_at IS NULL ORDER BY name, error_type LIMIT 1)
    UNION ALL
    SELECT n.name, n.error_type FROM named g CROSS JOIN LATERAL (
        SELECT s.name, s.error_type FROM suspensions s
        WHERE s.resumed_at IS NULL AND (s.name, s.error_type) > (g.name, g.error_type) ORDER BY s.name, s.error_type LIMIT 1
    ) n
)
SELECT 'suspension', g.name, g.error_type, m.number, m.number, m.first_at, l.suspended_at, l.instance_id, l.message
FROM (SELECT * FROM named LIMIT %(groups)s) g CROSS JOIN LATERAL (
    SELECT count(*) AS number, (
        SELECT s.suspended_at FROM suspensions s
        WHERE s.resumed_at IS NULL AND s.name = g.name AND s.error_type = g.error_type ORDER BY s.suspended_at LIMIT 1
    ) AS first_at FROM (
        SELECT FROM suspensions s WHERE s.resumed_at IS NULL AND s.name = g.name AND s.error_type = g.error_type
        ORDER BY s.suspended_at DESC LIMIT %(limit)s
    ) r
) m CROSS JOIN LATERAL (
    SELECT s.instance_id, s.suspended_at, s.message FROM suspensions s
    WHERE s.resumed_at IS NULL AND s.name = g.name AND s.error_type = g.error_type
    ORDER BY s.suspended_at DESC, s.instance_id DESC LIMIT 1
) l

-- now: the time
SELECT clock()
