-- begin: claim the sweep, unless there was one lately (a later time than now: the clock was set back)
UPDATE counters SET value = :now
WHERE name = 'swept_at' AND (value <= :now - :interval OR value > :now);

-- due_immediately: let the next sweep come without waiting
UPDATE counters SET value = 0 WHERE name = 'swept_at';

-- swept_clean: when the last complete sweep ran
SELECT value FROM counters WHERE name = 'swept_clean';

-- set_swept_clean: this one was complete
UPDATE counters SET value = :now WHERE name = 'swept_clean';

-- workers: names by whether they are alive
SELECT worker_id, incarnation, locked_until > :now FROM workers;

-- reroute_orphans: repair routes to a worker that is gone, or that has not taken what it was offered
UPDATE worker_queue SET route = stale.right_route
FROM (
    -- Compared here: items of moves that wait for their holders are on the right route, and must not fill the window.
    SELECT id, right_route FROM (
        SELECT q.id, CASE WHEN s.locked_until > :now AND w.worker_id IS NOT NULL
                          THEN iif(s.next_worker IS NULL, 'w:' || w.worker_id, 'new:' || s.next_worker) ELSE 'new' END
                          AS right_route
        FROM worker_queue AS q
        LEFT JOIN sessions AS s ON s.session_id = q.session_id
        LEFT JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation AND w.locked_until > :now
        WHERE q.route = :route AND q.visible_at <= :until
    )
    WHERE right_route <> :route
    LIMIT :limit
) AS stale
WHERE worker_queue.id = stale.id;

-- reroute_expired: repair routes to one worker of items whose sessions expired lately
UPDATE worker_queue SET route = 'new' WHERE id IN (
    SELECT q.id FROM sessions AS s
    CROSS JOIN worker_queue AS q ON q.session_id = s.session_id AND q.route = :route
    WHERE s.worker_id = :worker_id AND s.locked_until BETWEEN :since AND :now
    LIMIT :limit
);

-- reroute_held: route items of the sessions that one worker holds to it
UPDATE worker_queue SET route = :route WHERE id IN (
    SELECT q.id FROM sessions AS s
    CROSS JOIN worker_queue AS q ON q.session_id = s.session_id AND q.route < :route
    WHERE s.worker_id = :worker_id AND s.locked_until > :now AND s.incarnation = :incarnation AND s.next_worker IS NULL
    UNION ALL
    SELECT q.id FROM sessions AS s
    CROSS JOIN worker_queue AS q ON q.session_id = s.session_id AND q.route > :route
    WHERE s.worker_id = :worker_id AND s.locked_until > :now AND s.incarnation = :incarnation AND s.next_worker IS NULL
    LIMIT :limit
);

-- reroute_planned: route items of sessions that are to move to the workers that will have them
UPDATE worker_queue SET route = stale.right_route
FROM (
    SELECT q.id, 'new:' || s.next_worker AS right_route FROM sessions AS s
    CROSS JOIN worker_queue AS q ON q.session_id = s.session_id AND q.route <> 'new:' || s.next_worker
    WHERE s.next_worker IS NOT NULL AND s.locked_until > :now
    LIMIT :limit
) AS stale
WHERE worker_queue.id = stale.id;

-- end_plans: planned moves that cannot happen any more
UPDATE sessions SET next_worker = NULL, next_until = NULL, next_reason = NULL
WHERE next_worker IS NOT NULL AND (
    locked_until <= :now OR next_until <= :now
    OR NOT EXISTS (
        SELECT 1 FROM workers AS w
        WHERE w.worker_id = sessions.worker_id AND w.incarnation = sessions.incarnation AND w.locked_until > :now)
    OR NOT EXISTS (
        SELECT 1 FROM workers AS n WHERE n.worker_id = next_worker AND n.locked_until > :now AND NOT n.draining)
);

-- end_refused: of plans that are not taken: an offer ends, and another has one second left
UPDATE sessions SET
    next_worker = iif(next_until IS NULL, NULL, next_worker), next_reason = iif(next_until IS NULL, NULL, next_reason),
    next_until = iif(next_until IS NULL, NULL, :last)
WHERE next_worker IS NOT NULL AND (next_until IS NULL OR next_until > :last)
  AND EXISTS (
      SELECT 1 FROM worker_queue AS q
      WHERE q.session_id = sessions.session_id AND q.route = 'new:' || next_worker AND q.visible_at <= :offered_before)
  AND NOT EXISTS (
      SELECT 1 FROM worker_queue AS q
      WHERE q.session_id = sessions.session_id AND q.lock_incarnation = sessions.incarnation AND q.locked_until > :now);

-- remove_sessions: sessions that expired long ago, have no work and are not watched
-- A watched session keeps its row: without it, the next claim would be the first one, which notifies no watcher.
DELETE FROM sessions WHERE session_id IN (
    WITH RECURSIVE names (worker_id) AS (
        SELECT min(worker_id) FROM sessions
        UNION ALL
        SELECT (SELECT min(worker_id) FROM sessions WHERE worker_id > names.worker_id) FROM names
        WHERE names.worker_id IS NOT NULL
    )
    SELECT s.session_id FROM names
    CROSS JOIN sessions AS s ON s.worker_id = names.worker_id AND s.locked_until < :expired_before
    WHERE NOT EXISTS (SELECT 1 FROM worker_queue AS q WHERE q.session_id = s.session_id)
      AND NOT EXISTS (SELECT 1 FROM session_watches AS watch WHERE watch.session_id = s.session_id)
      -- nor would a session have its tag any more that may go on from its record
      AND (s.tag IS NULL OR NOT EXISTS (SELECT 1 FROM session_states AS r WHERE r.session_id = s.session_id))
    LIMIT :limit
);

-- remove_holds: holds whose time is over, which hold nothing any more
DELETE FROM session_holds WHERE (instance_id, execution_id, hold_id) IN (
    SELECT instance_id, execution_id, hold_id FROM session_holds WHERE until < :now LIMIT :limit
);

-- remove_workers: workers whose lease ended long ago, unless the lock of a session still names them
DELETE FROM workers
WHERE locked_until < iif(drain_wanted AND named, :drained_before, :ended_before)
  AND NOT EXISTS (
      SELECT 1 FROM sessions AS s WHERE s.worker_id = workers.worker_id AND s.locked_until > :now
  );
