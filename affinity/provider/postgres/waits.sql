-- end_waits: items that have waited for as long as they may are locked to the caller, and sessions that may be freed
-- It waits for no lock on an item: the next call meets the items that are locked now.
WITH RECURSIVE caller AS MATERIALIZED (
    SELECT FROM alive_workers WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s
), due AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id, q.session_id, q.takeover_after, q.fail_after, q.waits_since,
        q.lock_token, q.locked_until
    FROM worker_queue q
    WHERE q.attend_at <= (SELECT clock()) AND EXISTS (SELECT FROM caller)
    ORDER BY q.attend_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), judged AS MATERIALIZED (
    SELECT d.*, CASE WHEN d.lock_token IS NOT NULL THEN 'running'
                     WHEN d.waits_since + d.fail_after * interval '1 s' <= clock() THEN 'busy'
                     ELSE 'takeover' END AS fate
    FROM due d
), postponed AS (
    -- A running item begins to wait again when its lock ends.
    UPDATE worker_queue q
    SET waits_since = CASE WHEN j.fate = 'running' THEN greatest(clock(), j.locked_until) ELSE j.waits_since END,
        attend_at = CASE WHEN j.fate = 'running'
            THEN greatest(clock(), j.locked_until) + least(j.takeover_after, j.fail_after) * interval '1 s'
            ELSE least(clock() + j.takeover_after * interval '1 s', j.waits_since + j.fail_after * interval '1 s') END
    FROM judged j
    WHERE j.fate <> 'busy'
      AND q.instance_id = j.instance_id AND q.execution_id = j.execution_id AND q.activity_id = j.activity_id
), route (name) AS (
    -- Each distinct route with a tag once, by jumping from one to the next in the index.
    SELECT (SELECT route FROM worker_queue WHERE route > r.first AND route < r.last ORDER BY route LIMIT 1)
    FROM (VALUES ('free#', 'free$'), ('new#', 'new$')) AS r (first, last)
    WHERE %(tag_timeout)s::float8 IS NOT NULL AND EXISTS (SELECT FROM caller)
    UNION ALL
    SELECT (SELECT q.route FROM worker_queue q WHERE q.route > r.name AND q.route < split_part(r.name, '#', 1) || '$'
            ORDER BY q.route LIMIT 1)
    FROM route r WHERE r.name IS NOT NULL
), missing AS MATERIALIZED (
    SELECT r.name FROM route r
    WHERE r.name IS NOT NULL AND NOT EXISTS (
        SELECT FROM workers w
        WHERE w.tags && ARRAY[substr(r.name, strpos(r.name, '#') + 1), 'any']
          AND w.locked_until > clock() - %(tag_timeout)s * interval '1 s')
), stranded AS MATERIALIZED (
    SELECT o.*
    FROM missing m CROSS JOIN LATERAL (
        SELECT q.instance_id, q.execution_id, q.activity_id FROM deliverable_items q
        WHERE q.route = m.name AND q.visible_at <= (SELECT clock()) - %(tag_timeout)s * interval '1 s'
          -- What is urgent is visible from an earlier time on.
          AND greatest(q.enqueued_at, q.waits_since) <= (SELECT clock()) - %(tag_timeout)s * interval '1 s'
        ORDER BY q.visible_at LIMIT %(limit)s FOR NO KEY UPDATE OF q SKIP LOCKED
    ) o
), failing AS MATERIALIZED (
    SELECT f.*, row_number() OVER () AS n
    FROM (
        SELECT instance_id, execution_id, activity_id, 'busy' AS reason FROM judged WHERE fate = 'busy'
        UNION ALL
        SELECT s.*, 'no_worker_with_tag' FROM stranded s
        WHERE (s.instance_id, s.execution_id, s.activity_id) NOT IN (
            SELECT instance_id, execution_id, activity_id FROM judged)
    ) f
), taken AS (
    UPDATE worker_queue q
    SET lock_worker = %(worker)s, lock_incarnation = %(incarnation)s, lock_token = %(token)s || '.' || f.n,
        locked_until = clock() + %(item_lock)s * interval '1 s',
        attend_at = CASE WHEN q.attend_at IS NOT NULL THEN clock() + %(item_lock)s * interval '1 s' END
    FROM failing f
    WHERE q.instance_id = f.instance_id AND q.execution_id = f.execution_id AND q.activity_id = f.activity_id
    RETURNING f.n, q.instance_id, q.execution_id, q.activity_id, q.lock_token, q.name, q.payload,
        coalesce(q.session_id, q.gate_session, q.order_session), NULL::bigint AS epoch, q.attempts, q.failures,
        NULL::float8 AS unknown_for, extract(epoch FROM clock() - q.enqueued_at)::float8 AS queued_for,
        q.order_session IS NOT NULL AS ordered, q.limited IS TRUE AS limited, NULL::text AS tag, f.reason
)
SELECT w.sessions, t.*
FROM (
    SELECT array_agg(DISTINCT session_id) FILTER (WHERE fate = 'takeover' AND session_id IS NOT NULL) AS sessions
    FROM judged
) w LEFT JOIN taken t ON true

-- release_busy: free sessions of busy holders; a statement of its own, since it changes items that `end_waits` has changed
SELECT release_busy(%(release)s, %(reroute)s)

-- tags: of queued work that no worker holds; each distinct route with a tag once, by jumping from one to the next in the index
WITH RECURSIVE route (name) AS (
    SELECT (SELECT route FROM worker_queue WHERE route > r.first AND route < r.last ORDER BY route LIMIT 1)
    FROM (VALUES ('free#', 'free$'), ('new#', 'new$')) AS r (first, last)
    UNION ALL
    SELECT (SELECT q.route FROM worker_queue q WHERE q.route > r.name AND q.route < split_part(r.name, '#', 1) || '$'
            ORDER BY q.route LIMIT 1)
    FROM route r WHERE r.name IS NOT NULL
)
SELECT DISTINCT substr(r.name, strpos(r.name, '#') + 1) FROM (SELECT name FROM route WHERE name IS NOT NULL LIMIT 2 * %(limit)s) r
LIMIT %(limit)s
