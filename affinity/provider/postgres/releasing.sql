-- lock: a claim, a fetch or a commit that has one of these sessions is waited for, and is seen by what follows
SELECT FROM sessions WHERE session_id = ANY (%(release)s) ORDER BY session_id FOR NO KEY UPDATE

-- release: free sessions that are held, unless their holders have work of them in hand
SELECT release_sessions(%(release)s, %(reroute)s)

-- release_idle: release sessions for work that no worker has room for
-- Parts: `find` finds sessions that nothing seems to keep, `free` locks their rows, checks again, and releases them.
WITH fleet AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE NOT draining) AS n,
        coalesce(bool_or(NOT draining AND worker_id = %(worker)s AND incarnation = %(incarnation)s), false)
        AND %(max_sessions)s > 0 AS may_claim
    FROM alive_workers
), over AS MATERIALIZED (
    -- Sessions whose only user has ended.
    SELECT u.session_id
    FROM unnest(%(used)s::text[], %(user)s::text[]) AS u (session_id, instance_id) LEFT JOIN instances i USING (instance_id)
    WHERE i.instance_id IS NULL OR i.status IN ('completed', 'failed', 'cancelled')
), idle AS MATERIALIZED (
    SELECT s.session_id,
        row_number() OVER (ORDER BY s.session_id NOT IN (SELECT session_id FROM over), s.touched_at) AS n
    FROM sessions s
-- [find
    WHERE s.worker_id = %(worker)s
-- find]
-- [free
    WHERE s.session_id = ANY (%(release)s) AND (s.worker_id = %(worker)s) IS TRUE
-- free]
      AND s.incarnation = %(incarnation)s AND s.locked_until > clock()
      AND (s.touched_at <= clock() - %(min_idle)s * interval '1 s' OR s.session_id IN (SELECT session_id FROM over))
      -- One value each, which the planner cannot make a join of: the queue may be long, the sessions few.
      AND (SELECT true FROM worker_queue q WHERE q.session_id = s.session_id LIMIT 1) IS NULL
      AND (SELECT true FROM session_holds h WHERE h.session_id = s.session_id AND h.until > clock() LIMIT 1) IS NULL
), room AS MATERIALIZED (
    SELECT %(max_sessions)s - count(*) AS n FROM sessions s
    WHERE s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s AND s.locked_until > clock()
), waiting AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id, q.session_id, q.visible_at
    FROM deliverable_items q
    WHERE q.route = ANY (%(new)s) AND (SELECT may_claim FROM fleet) AND EXISTS (SELECT FROM idle)
      AND q.visible_at <= (
          SELECT clock() - CASE WHEN n > 1 THEN %(offer_seconds)s ELSE 0 END * interval '1 s' FROM fleet)
      AND q.name = ANY (%(names)s) AND (q.needs IS NULL OR q.needs = ANY (%(names)s))
      AND (SELECT true FROM held_sessions h WHERE h.session_id = q.session_id) IS NULL
    ORDER BY q.visible_at LIMIT %(limit)s
-- [free
    FOR NO KEY UPDATE OF q SKIP LOCKED
-- free]
), wanted AS MATERIALIZED (
    SELECT session_id, row_number() OVER (ORDER BY min(visible_at)) AS n FROM waiting GROUP BY session_id
), most AS MATERIALIZED (
    -- How many to release: one for each session that waits, and as many as the caller has too many.
    SELECT CASE WHEN room.n <= 0 AND EXISTS (SELECT FROM wanted) THEN (SELECT count(*) FROM wanted) - room.n END AS n
    FROM room
-- [find
)
SELECT session_id FROM idle
WHERE n <= (SELECT n FROM most) ORDER BY n
-- find]
-- [free
), freed AS (
    UPDATE sessions s SET locked_until = clock(), freed_by = 'room_needed' FROM idle
    WHERE s.session_id = idle.session_id AND idle.n <= (SELECT n FROM most)
    RETURNING s.session_id
), offered AS (
    UPDATE worker_queue q SET route = %(offer)s
    FROM waiting w JOIN wanted USING (session_id)
    WHERE q.instance_id = w.instance_id AND q.execution_id = w.execution_id AND q.activity_id = w.activity_id
      AND wanted.n <= (SELECT count(*) FROM freed) + (SELECT n FROM room)
)
SELECT session_id FROM freed
-- free]
