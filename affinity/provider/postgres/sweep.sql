-- begin: whether it is time for a sweep; a second worker does not wait for the first
UPDATE sweeps SET last_sweep = clock()
FROM (
    SELECT ctid FROM sweeps WHERE last_sweep <= clock() - %(interval)s * interval '1 s' FOR NO KEY UPDATE SKIP LOCKED
) due
WHERE sweeps.ctid = due.ctid
RETURNING queued_session, queued_route, session, CASE WHEN isfinite(pruned_to) THEN pruned_to END

-- again: there is more to do, so the interval does not count
UPDATE sweeps SET last_sweep = '-infinity'

-- begin_next: starts whose instances have ended
SELECT begin_next_starts(%(rows)s)

-- end_plans: planned moves that can no longer happen; a move that is not taken has one second left
WITH planned AS MATERIALIZED (
    SELECT p.session_id, p.next_worker, p.next_until, p.is_over OR p.next_until IS NULL AS is_over
    FROM (
        SELECT s.session_id, s.next_worker, s.next_until,
            (SELECT true FROM held_sessions h JOIN planned_moves m ON m.session_id = h.session_id
             WHERE h.session_id = s.session_id) IS NULL AS is_over,
            -- Nothing of it runs, and its work has waited: nothing keeps the worker from taking it.
            (SELECT true FROM worker_queue q
             WHERE q.session_id = s.session_id AND q.route = 'new:' || s.next_worker
               AND q.visible_at <= clock() - %(offer_seconds)s * interval '1 s' LIMIT 1) IS TRUE
            AND (SELECT true FROM worker_queue q
                 WHERE q.session_id = s.session_id AND q.lock_incarnation = s.incarnation AND q.locked_until > clock()
                 LIMIT 1) IS NULL AS is_refused
        -- By worker, in the order of the index, and so many: no plan reads the sessions that stay where they are.
        FROM workers n CROSS JOIN LATERAL (
            SELECT * FROM sessions WHERE next_worker = n.worker_id ORDER BY next_until LIMIT %(window)s
        ) s
        OFFSET 0
    ) p
    WHERE p.is_over
       OR p.is_refused AND (p.next_until > clock() + %(offer_seconds)s * interval '1 s') IS NOT FALSE
    LIMIT %(reroute)s
), mine AS MATERIALIZED (
    -- Of a plan that was made meanwhile nothing is known.
    SELECT s.session_id, p.is_over FROM planned p JOIN sessions s USING (session_id)
    WHERE s.next_worker = p.next_worker AND s.next_until IS NOT DISTINCT FROM p.next_until
    FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE sessions s
SET next_worker = CASE WHEN NOT m.is_over THEN s.next_worker END,
    next_until = CASE WHEN NOT m.is_over THEN clock() + %(offer_seconds)s * interval '1 s' END,
    next_reason = CASE WHEN NOT m.is_over THEN s.next_reason END
FROM mine m WHERE s.session_id = m.session_id

-- repair: stale routes in both queues, and rows that are not needed; one statement, so that idle workers send little
-- It waits for no lock, and may be repeated: the next sweep does the rest.
WITH RECURSIVE routed (session_id, route, n) AS (
    -- Each pair of session and route once, by jumping from one to the next in the index: neither idle sessions nor long
    -- queues cost anything. A sweep reads up to `window` pairs, and begins where the last one stopped.
    (SELECT session_id, route, 1 FROM worker_queue
     WHERE session_id IS NOT NULL AND (session_id, route) > (%(queued_session)s, %(queued_route)s)
     ORDER BY session_id, route LIMIT 1)
    UNION ALL
    SELECT next.session_id, next.route, m.n + 1
    FROM routed m CROSS JOIN LATERAL (
        SELECT q.session_id, q.route FROM worker_queue q
        WHERE q.session_id IS NOT NULL AND (q.session_id, q.route) > (m.session_id, m.route)
        ORDER BY q.session_id, q.route LIMIT 1
    ) next
    WHERE m.n < %(window)s
), wrong AS MATERIALIZED (
    SELECT m.session_id, m.route, coalesce(s.route, 'new') AS right_route
    FROM routed m LEFT JOIN session_routes s ON s.session_id = m.session_id
    WHERE m.route <> coalesce(s.route, 'new') AND NOT (m.route > 'new:' AND m.route < 'new;')
      AND NOT (m.route > 'new#' AND m.route < 'new$' AND s.holder IS NULL)
), route (name) AS (
    -- Each distinct route to a worker once, in the same way, without a window: rows of a dead worker, and offers that were
    -- not taken in time, are repaired by the next sweep.
    SELECT least((SELECT route FROM worker_queue WHERE route > 'new:' ORDER BY route LIMIT 1),
                 (SELECT route FROM orchestrator_queue WHERE route > 'new:' ORDER BY route LIMIT 1))
    UNION ALL
    SELECT least((SELECT q.route FROM worker_queue q WHERE q.route > r.name ORDER BY q.route LIMIT 1),
                 (SELECT o.route FROM orchestrator_queue o WHERE o.route > r.name ORDER BY o.route LIMIT 1))
    FROM route r WHERE r.name IS NOT NULL
), dead AS MATERIALIZED (
    -- Apart, and first: if it were joined with a queue, the planner would rather read the whole queue.
    SELECT r.name, w.worker_id IS NOT NULL AS has_left
    FROM route r LEFT JOIN alive_workers w ON w.worker_id = substr(r.name, 3)
    -- One that has left for a restart keeps its sessions, and owns no instances.
    WHERE r.name > 'w:' AND (w.worker_id IS NULL OR w.incarnation ^@ %(left)s)
), orphans AS MATERIALIZED (
    SELECT o.*
    FROM (
        SELECT name, 'infinity'::timestamptz AS until FROM dead WHERE NOT has_left
        UNION ALL
        SELECT name, (SELECT clock()) - %(offer_seconds)s * interval '1 s' FROM route WHERE name < 'new;'
    ) m CROSS JOIN LATERAL (
        -- Compared here: items of moves that wait for their holders are on the right route, and must not fill the window.
        SELECT q.instance_id, q.execution_id, q.activity_id, q.route AS former, r.route
        FROM worker_queue q CROSS JOIN LATERAL (
            SELECT coalesce((SELECT s.route FROM session_routes s WHERE s.session_id = q.session_id), 'new') AS route
        ) r
        WHERE q.route = m.name AND q.visible_at <= m.until AND q.route <> r.route
        ORDER BY q.visible_at LIMIT %(reroute)s
    ) o
    LIMIT %(reroute)s
), stale_items AS MATERIALIZED (
    SELECT o.* FROM orphans o
    UNION
    (SELECT q.instance_id, q.execution_id, q.activity_id, w.route, w.right_route
     FROM wrong w JOIN worker_queue q ON q.session_id = w.session_id AND q.route = w.route
     LIMIT %(reroute)s)
), locked AS MATERIALIZED (
    -- One that has another route by now may wait at its gate, or be on its way.
    SELECT s.* FROM stale_items s JOIN worker_queue q USING (instance_id, execution_id, activity_id)
    WHERE q.route = s.former
    FOR NO KEY UPDATE OF q SKIP LOCKED
), items AS (
    UPDATE worker_queue q SET route = l.route FROM locked l
    WHERE q.instance_id = l.instance_id AND q.execution_id = l.execution_id AND q.activity_id = l.activity_id
    RETURNING 1
), stale_messages AS MATERIALIZED (
    SELECT m.id
    FROM dead d CROSS JOIN LATERAL (
        SELECT o.id FROM orchestrator_queue o WHERE o.route = d.name
        ORDER BY o.visible_at LIMIT %(reroute)s FOR NO KEY UPDATE SKIP LOCKED
    ) m
    LIMIT %(reroute)s
), messages AS (
    UPDATE orchestrator_queue o SET route = 'new' FROM stale_messages s WHERE o.id = s.id
    RETURNING 1
), resumed AS MATERIALIZED (
    -- Sent while the instance was resumed, by a sender that saw it suspended. By now no sender does so.
    SELECT s.instance_id FROM suspensions s WHERE s.unchecked AND s.resumed_at < (SELECT clock()) - interval '10 s'
    ORDER BY s.resumed_at LIMIT %(reroute)s FOR NO KEY UPDATE SKIP LOCKED
), checked AS (
    UPDATE suspensions s SET unchecked = false FROM resumed r WHERE s.instance_id = r.instance_id
), missed_messages AS MATERIALIZED (
    SELECT o.id FROM resumed r JOIN instances i USING (instance_id) JOIN orchestrator_queue o USING (instance_id)
    WHERE i.status <> 'suspended' AND o.route = 'suspended'
    FOR NO KEY UPDATE OF o SKIP LOCKED
), missed AS (
    UPDATE orchestrator_queue o SET route = 'new' FROM missed_messages m WHERE o.id = m.id
), looked AS MATERIALIZED (
    SELECT session_id FROM sessions WHERE session_id > %(session)s ORDER BY session_id LIMIT %(window)s
), old_sessions AS MATERIALIZED (
    SELECT x.session_id FROM looked JOIN sessions x USING (session_id)
    WHERE x.locked_until < clock() - %(session_retention)s * interval '1 s'
      AND NOT EXISTS (SELECT FROM worker_queue q WHERE q.session_id = x.session_id)
      -- Without the row, the next claim would be the first one, and a first claim notifies no watcher. A trigger keeps the row
      -- if a watch, or a record, was committed between this snapshot and the lock.
      AND NOT EXISTS (SELECT FROM session_watches w WHERE w.session_id = x.session_id)
      -- The row has the session's tag: it stays while the session may begin again from its record.
      AND (x.tag IS NULL OR NOT EXISTS (SELECT FROM session_states r WHERE r.session_id = x.session_id))
    LIMIT %(rows)s FOR UPDATE OF x SKIP LOCKED
), removed_sessions AS (
    DELETE FROM sessions s USING old_sessions o WHERE s.session_id = o.session_id
    RETURNING 1
), old_orders AS MATERIALIZED (
    -- Behind the sessions' rows, in the same window: an order without an item is made again by the next one.
    SELECT o.session_id FROM session_orders o
    WHERE o.session_id > %(session)s
      AND ((SELECT count(*) FROM looked) < %(window)s OR o.session_id <= (SELECT max(session_id) FROM looked))
      AND NOT EXISTS (SELECT FROM sessions s WHERE s.session_id = o.session_id
                      AND s.session_id NOT IN (SELECT r.session_id FROM old_sessions r))
      AND NOT EXISTS (SELECT FROM worker_queue q WHERE q.order_session = o.session_id)
    LIMIT %(reroute)s FOR UPDATE SKIP LOCKED
), removed_orders AS (
    DELETE FROM session_orders o USING old_orders r WHERE o.session_id = r.session_id
), old_holds AS MATERIALIZED (
    SELECT h.instance_id, h.execution_id, h.hold_id FROM session_holds h WHERE h.until < (SELECT clock())
    ORDER BY h.until LIMIT %(rows)s FOR UPDATE SKIP LOCKED
), removed_holds AS (
    DELETE FROM session_holds h USING old_holds o
    WHERE h.instance_id = o.instance_id AND h.execution_id = o.execution_id AND h.hold_id = o.hold_id
    RETURNING 1
), removed_waits AS (
    DELETE FROM activity_waits w WHERE NOT activity_runs(w)
), old_workers AS MATERIALIZED (
    SELECT x.worker_id FROM workers x
    WHERE x.locked_until < clock()
        - CASE WHEN x.drain_wanted AND x.named THEN %(drained_retention)s ELSE %(worker_retention)s END * interval '1 s'
    LIMIT %(rows)s FOR UPDATE SKIP LOCKED
), removed_workers AS (
    DELETE FROM workers w USING old_workers o WHERE w.worker_id = o.worker_id
    RETURNING 1
), stopped AS (
    -- The next sweep begins behind the window, or at the beginning if the window was not full. It begins where this one
    -- did if there may be more stale routes in the window than one sweep repairs.
    UPDATE sweeps SET
        queued_session = CASE WHEN (SELECT count(*) FROM items) >= %(reroute)s THEN %(queued_session)s
                              ELSE coalesce((SELECT session_id FROM routed WHERE n = %(window)s), '') END,
        queued_route = CASE WHEN (SELECT count(*) FROM items) >= %(reroute)s THEN %(queued_route)s
                            ELSE coalesce((SELECT route FROM routed WHERE n = %(window)s), '') END,
        -- As above, of sessions that may be removed.
        session = CASE WHEN (SELECT count(*) FROM removed_sessions) >= %(rows)s THEN %(session)s
                       WHEN (SELECT count(*) FROM looked) < %(window)s THEN ''
                       ELSE (SELECT max(session_id) FROM looked) END
    FROM (SELECT ctid FROM sweeps FOR NO KEY UPDATE SKIP LOCKED) mine
    WHERE sweeps.ctid = mine.ctid
)
SELECT (SELECT count(*) FROM items), (SELECT count(*) FROM messages), (SELECT count(*) FROM removed_sessions),
    (SELECT count(*) FROM removed_workers), (SELECT count(*) FROM removed_holds),
    ARRAY(
        SELECT c.relname::text
        FROM unnest(ARRAY['worker_queue'::regclass, 'orchestrator_queue'::regclass]) AS q (oid) JOIN pg_class c USING (oid)
        WHERE pg_stat_get_dead_tuples(c.oid) BETWEEN %(dead)s AND %(too_many)s 
          AND (pg_has_role(c.relowner, 'USAGE')
               -- A right that can be given from version 17 on.
               OR CASE WHEN current_setting('server_version_num')::int >= 170000
                       THEN has_table_privilege(c.oid, 'MAINTAIN') END)),
    -- End our connections that began a request and do not send the rest: they would keep their locks. No timeout of the
    -- server ends them, since such a connection counts as active.
    (SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
     WHERE datname = current_database() AND usename = current_user
       AND (application_name LIKE 'affinity %%' OR application_name = %(application_name)s)
       AND state = 'active' AND wait_event = 'ClientRead'
       AND xact_start < clock_timestamp() - %(half_sent)s * interval '1 s')
    -- columns of guests
