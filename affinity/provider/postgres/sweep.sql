-- begin: whether it is time for a sweep; whoever comes second does not wait for the first
UPDATE sweeps SET last_sweep = clock()
FROM (
    SELECT ctid FROM sweeps WHERE last_sweep <= clock() - %(interval)s * interval '1 s' FOR NO KEY UPDATE SKIP LOCKED
) due
WHERE sweeps.ctid = due.ctid
RETURNING 1

-- again: there is more to do, so the interval does not count
UPDATE sweeps SET last_sweep = '-infinity'

-- reroute_items: marks that say something else than the session's row
WITH RECURSIVE mark (session_id, route) AS (
    -- Each pair once, by jumping from one to the next in the index: idle sessions cost nothing, nor do long queues.
    (SELECT session_id, route FROM worker_queue
     WHERE session_id IS NOT NULL ORDER BY session_id, route LIMIT 1)
    UNION ALL
    SELECT next.session_id, next.route
    FROM mark m CROSS JOIN LATERAL (
        SELECT q.session_id, q.route FROM worker_queue q
        WHERE q.session_id IS NOT NULL AND (q.session_id, q.route) > (m.session_id, m.route)
        ORDER BY q.session_id, q.route LIMIT 1
    ) next
), wrong AS MATERIALIZED (
    SELECT m.session_id, m.route, coalesce('w:' || h.worker_id, 'new') AS truth
    FROM mark m LEFT JOIN held_sessions h ON h.session_id = m.session_id
    WHERE m.route <> coalesce('w:' || h.worker_id, 'new')
), stale AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id, w.truth AS route
    FROM wrong w JOIN worker_queue q ON q.session_id = w.session_id AND q.route = w.route
    LIMIT %(reroute)s
), locked AS MATERIALIZED (
    SELECT s.* FROM stale s JOIN worker_queue q USING (instance_id, execution_id, activity_id)
    FOR NO KEY UPDATE OF q SKIP LOCKED
)
UPDATE worker_queue q SET route = l.route FROM locked l
WHERE q.instance_id = l.instance_id AND q.execution_id = l.execution_id AND q.activity_id = l.activity_id
RETURNING 1

-- reroute_messages: marks for workers that are dead
WITH RECURSIVE route (name) AS (
    -- Each distinct mark once, by jumping from one to the next in the index.
    (SELECT route FROM orchestrator_queue WHERE route > 'w:' ORDER BY route LIMIT 1)
    UNION ALL
    SELECT (SELECT o.route FROM orchestrator_queue o WHERE o.route > r.name ORDER BY o.route LIMIT 1)
    FROM route r WHERE r.name IS NOT NULL
), stale AS MATERIALIZED (
    SELECT o.id FROM route r JOIN orchestrator_queue o ON o.route = r.name
    WHERE NOT EXISTS (SELECT FROM alive_workers w WHERE w.worker_id = substr(r.name, 3))
    LIMIT %(reroute)s FOR NO KEY UPDATE OF o SKIP LOCKED
)
UPDATE orchestrator_queue o SET route = 'new' FROM stale s WHERE o.id = s.id
RETURNING 1

-- remove_sessions: those that expired long ago and have no work
DELETE FROM sessions s USING (
    SELECT x.session_id FROM sessions x
    WHERE x.locked_until < clock() - %(retention)s * interval '1 s'
      AND NOT EXISTS (SELECT FROM worker_queue q WHERE q.session_id = x.session_id)
    LIMIT %(reroute)s FOR UPDATE SKIP LOCKED
) old
WHERE s.session_id = old.session_id
RETURNING 1

-- remove_workers: those whose lease ended long ago
DELETE FROM workers w USING (
    SELECT x.worker_id FROM workers x WHERE x.locked_until < clock() - %(retention)s * interval '1 s'
    LIMIT %(reroute)s FOR UPDATE SKIP LOCKED
) old
WHERE w.worker_id = old.worker_id
RETURNING 1
