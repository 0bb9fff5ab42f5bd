-- next_due: when the next message, activity or bound of a wait is due; what no worker has code for, fails then
SELECT min(at) FROM (
    SELECT min(visible_at) AS at FROM orchestrator_queue WHERE visible_at > :now AND route <> 'suspended'
    UNION ALL
    SELECT min(visible_at) FROM worker_queue WHERE visible_at > :now AND route <> 'blocked'
    UNION ALL
    SELECT min(attend_at) FROM worker_queue WHERE attend_at > :now
    UNION ALL
    SELECT min(unknown_since) + :unknown FROM worker_queue WHERE unknown_since + :unknown > :now
    UNION ALL
    SELECT min(unknown_since) + :unknown FROM instances WHERE unknown_since + :unknown > :now
);

-- waits: whether work waits that could be fetched now, if a lease, a hold or an offer had ended
SELECT EXISTS (
        SELECT 1 FROM worker_queue WHERE visible_at <= :now AND route <> 'blocked'
          AND (lock_incarnation IS NULL OR lock_incarnation NOT IN (SELECT value FROM json_each(:busy))))
    OR EXISTS (SELECT 1 FROM orchestrator_queue WHERE visible_at <= :now AND route <> 'suspended');

-- next_lease: when the next lease of a worker that does not run ends, or a lock, a hold or an offer of waiting work
SELECT min(at) FROM (
    SELECT min(locked_until) AS at FROM workers
    WHERE locked_until > :now AND incarnation NOT IN (SELECT value FROM json_each(:alive))
    UNION ALL
    SELECT min(locked_until) FROM worker_queue
    WHERE locked_until > :now AND lock_incarnation NOT IN (SELECT value FROM json_each(:busy))
    UNION ALL
    SELECT min(min(s.locked_until, coalesce(s.next_until, s.locked_until)))
    FROM worker_queue AS q JOIN sessions AS s ON s.session_id = q.session_id
    WHERE q.visible_at <= :now AND min(s.locked_until, coalesce(s.next_until, s.locked_until)) > :now
    UNION ALL
    SELECT min(visible_at) + :offer FROM worker_queue
    WHERE visible_at <= :now AND visible_at + :offer > :now AND route LIKE 'new%'
    UNION ALL
    SELECT min(visible_at) + :unknown FROM worker_queue
    WHERE visible_at <= :now AND visible_at + :unknown > :now AND route LIKE '%#%'
    UNION ALL
    SELECT min(until) FROM session_holds WHERE until > :now
    UNION ALL
    SELECT min(locked_until) FROM sessions WHERE locked_until > :now
);

-- move_workers: the leases of workers that run
UPDATE workers SET locked_until = locked_until + :seconds
WHERE locked_until > :now AND incarnation IN (SELECT value FROM json_each(:alive));

-- move_sessions: the locks of their sessions whose work they run
UPDATE sessions SET locked_until = locked_until + :seconds
WHERE locked_until > :now AND incarnation IN (SELECT value FROM json_each(:alive)) AND session_id IN (
    SELECT session_id FROM worker_queue
    WHERE lock_incarnation IN (SELECT value FROM json_each(:busy)) AND locked_until > :now);

-- move_items: the locks of that work
UPDATE worker_queue SET locked_until = locked_until + :seconds
WHERE locked_until > :now AND lock_incarnation IN (SELECT value FROM json_each(:busy));
