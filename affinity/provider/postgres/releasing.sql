-- lock: a claim, a fetch or a commit that has one of these sessions is waited for, and is seen by what follows
SELECT FROM sessions WHERE session_id = ANY (%(release)s) ORDER BY session_id FOR NO KEY UPDATE

-- release: free sessions that are held, unless their holders have work of them in hand
SELECT release_sessions(%(release)s, %(reroute)s)

-- released: the effects of release, for `with_shares`
SELECT o.place, o.outcome FROM result CROSS JOIN unnest(release_sessions) WITH ORDINALITY AS o (outcome, place)
WHERE o.outcome = 'released'

-- release_idle: release sessions at rest for work that no worker has room for
-- Parts: `find` finds sessions that nothing seems to keep, `free` locks their rows, checks again, and releases them.
WITH me AS MATERIALIZED (
    -- Workers of other apps may have room, and not the code.
    SELECT EXISTS (
        SELECT FROM workers w
        WHERE w.app = m.app AND w.worker_id <> m.worker_id AND w.locked_until > clock() AND NOT w.draining
          AND w.capacity > (
              SELECT count(*) FROM sessions s
              WHERE s.worker_id = w.worker_id AND s.incarnation = w.incarnation AND s.locked_until > clock()
          ) + (  -- what was offered to it, for which it may just have made room
              SELECT count(*)
              FROM (SELECT FROM worker_queue q
                    WHERE q.route = 'new:' || w.worker_id AND q.visible_at <= (SELECT clock())
                    LIMIT w.capacity) offered)
        ) AS others_have_room
    FROM workers m
    WHERE m.worker_id = %(worker)s AND m.incarnation = %(incarnation)s AND m.locked_until > clock() AND NOT m.draining
      AND %(max_sessions)s > 0
), known AS MATERIALIZED (
    SELECT k.session_id, k.place, u.is_over, k.in_use AND NOT u.is_over AS in_use
    FROM unnest(%(known)s::text[], %(user)s::text[], %(in_use)s::boolean[])
        WITH ORDINALITY AS k (session_id, instance_id, in_use, place)
    LEFT JOIN instances i USING (instance_id)
    CROSS JOIN LATERAL (
        SELECT k.instance_id <> ''
            AND (i.instance_id IS NULL OR i.status IN ('completed', 'failed', 'cancelled')) AS is_over
    ) u
), idle AS MATERIALIZED (
    SELECT s.session_id, k.in_use IS TRUE AS in_use, row_number() OVER (
        ORDER BY k.is_over IS NOT TRUE, k.in_use IS TRUE, k.place NULLS FIRST, s.touched_at, s.session_id) AS n
    FROM sessions s LEFT JOIN known k USING (session_id)
-- [find
    WHERE s.worker_id = %(worker)s
-- find]
-- [free
    WHERE s.session_id = ANY (%(release)s) AND (s.worker_id = %(worker)s) IS TRUE
-- free]
      AND s.incarnation = %(incarnation)s AND s.locked_until > clock()
      -- One value each, which the planner cannot make a join of: the queue may be long, the sessions few.
      AND (SELECT true FROM worker_queue q WHERE q.session_id = s.session_id LIMIT 1) IS NULL
      AND (SELECT true FROM session_holds h WHERE h.session_id = s.session_id AND h.until > clock() LIMIT 1) IS NULL
), room AS MATERIALIZED (
    SELECT %(max_sessions)s - count(*) AS n FROM sessions s
    WHERE s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s AND s.locked_until > clock()
), waiting AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id, q.session_id, q.visible_at
    FROM deliverable_items q
    WHERE q.route = ANY (%(new)s) AND EXISTS (SELECT FROM me) AND EXISTS (SELECT FROM idle)
      AND q.visible_at <= (
          SELECT clock() - CASE WHEN others_have_room THEN %(offer_seconds)s ELSE 0 END * interval '1 s' FROM me)
      AND q.name = ANY (%(names)s) AND (q.needs IS NULL OR q.needs = ANY (%(names)s))
      AND (SELECT true FROM held_sessions h WHERE h.session_id = q.session_id) IS NULL
    ORDER BY q.visible_at LIMIT %(limit)s
-- [free
    FOR NO KEY UPDATE OF q SKIP LOCKED
-- free]
), wanted AS MATERIALIZED (
    SELECT session_id, row_number() OVER (ORDER BY min(visible_at)) AS n,
        min(visible_at) <= clock() - %(offer_seconds)s * interval '1 s' AS is_late
    FROM waiting GROUP BY session_id
), most AS MATERIALIZED (
    -- How many to release: one for each session that waits, and as many as the caller has too many; and how many of them
    -- although they are in use.
    SELECT CASE WHEN room.n <= 0 AND w.n > 0 THEN w.n - room.n END AS n,
        CASE WHEN room.n <= 0 AND w.late > 0 THEN w.late - room.n END AS in_use
    FROM room CROSS JOIN (SELECT count(*) AS n, count(*) FILTER (WHERE is_late) AS late FROM wanted) w
-- [find
)
SELECT session_id FROM idle
WHERE n <= (SELECT CASE WHEN idle.in_use THEN m.in_use ELSE m.n END FROM most m) ORDER BY n
-- find]
-- [free
), freed AS (
    UPDATE sessions s SET locked_until = clock(), freed_by = 'room_needed' FROM idle
    WHERE s.session_id = idle.session_id AND idle.n <= (SELECT CASE WHEN idle.in_use THEN m.in_use ELSE m.n END FROM most m)
    RETURNING s.session_id
), offered AS (
    UPDATE worker_queue q SET route = %(offer)s
    FROM waiting w JOIN wanted USING (session_id)
    WHERE q.instance_id = w.instance_id AND q.execution_id = w.execution_id AND q.activity_id = w.activity_id
      AND wanted.n <= (SELECT count(*) FROM freed) + (SELECT n FROM room)
)
SELECT session_id FROM freed
-- free]
