-- next_due: when the next message, activity or bound of a wait is due; what no worker has code for, fails then
SELECT min(at) FROM (
    SELECT min(visible_at) AS at FROM orchestrator_queue WHERE visible_at > :now AND route NOT IN ('suspended', 'gated')
    UNION ALL
    -- What no worker takes pauses again and again, unless it fails at last.
    SELECT min(visible_at) FROM worker_queue
    WHERE visible_at > :now AND route <> 'blocked' AND (passed_over IS NULL OR fail_after IS NOT NULL)
    UNION ALL
    SELECT min(attend_at) FROM worker_queue WHERE attend_at > :now
    UNION ALL
    SELECT min(unknown_since) + :unknown FROM worker_queue WHERE unknown_since + :unknown > :now
    UNION ALL
    SELECT min(unknown_since) + :unknown FROM instances WHERE unknown_since + :unknown > :now
    UNION ALL
    -- The next sweep begins a start that has waited for the end of its instance. The clock may stand where the last one was.
    SELECT :now + 1.0 WHERE json_array_length(:alive) > 0 AND EXISTS (
        SELECT 1 FROM instances WHERE next_start IS NOT NULL AND instance_id > '' AND status IN ('completed', 'failed', 'cancelled'))
);

-- waits: whether work waits that could be fetched now, if a lease, a hold or an offer had ended
SELECT EXISTS (
        SELECT 1 FROM worker_queue WHERE visible_at <= :now AND route NOT IN ('blocked', 'gated')
          AND (lock_incarnation IS NULL OR lock_incarnation NOT IN (SELECT value FROM json_each(:busy))))
    OR EXISTS (SELECT 1 FROM orchestrator_queue WHERE visible_at <= :now AND route NOT IN ('suspended', 'gated'));

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
    -- Not of limited work: what no worker takes lends its slots to other work, again and again.
    SELECT min(visible_at) + :offer FROM worker_queue
    WHERE visible_at <= :now AND visible_at + :offer > :now AND route LIKE 'new%' AND limited IS NOT 1
    UNION ALL
    SELECT min(visible_at) + :unknown FROM worker_queue
    WHERE visible_at <= :now AND visible_at + :unknown > :now AND route LIKE '%#%' AND limited IS NOT 1
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
