-- busy: which of some sessions their holders have work of in hand
SELECT json_group_array(s.session_id)
FROM json_each(:session_ids) AS j
CROSS JOIN sessions AS s ON s.session_id = j.value
WHERE EXISTS (
    SELECT 1 FROM worker_queue AS q
    WHERE q.session_id = s.session_id AND q.lock_incarnation = s.incarnation AND q.locked_until > :now
);

-- room: of a caller that takes work, how many others do, and how many sessions it holds
SELECT (SELECT count(*) FROM workers WHERE locked_until > :now AND NOT draining AND worker_id <> :worker_id),
       (SELECT count(*) FROM sessions
        WHERE worker_id = :worker_id AND locked_until > :now AND incarnation = :incarnation)
FROM workers
WHERE worker_id = :worker_id AND incarnation = :incarnation AND locked_until > :now AND NOT draining;

-- waiting: sessions that no worker holds and whose work waits since some time, oldest first
SELECT json_group_array(session_id)
FROM (
    SELECT session_id, min(visible_at) AS first
    FROM (
        SELECT q.session_id, q.visible_at
        FROM worker_queue AS q
        LEFT JOIN sessions AS s ON s.session_id = q.session_id AND s.locked_until > :now
        LEFT JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation AND w.locked_until > :now
        WHERE q.route IN (SELECT value FROM json_each(:new)) AND q.visible_at <= :since AND w.worker_id IS NULL
          AND (q.lock_token IS NULL OR q.locked_until <= :now
               OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now))
          AND q.name IN (SELECT value FROM json_each(:names))
          AND (q.needs IS NULL OR q.needs IN (SELECT value FROM json_each(:names)))
        ORDER BY q.visible_at, q.id
        LIMIT :limit
    )
    GROUP BY session_id
    ORDER BY first
);

-- idle: sessions of the caller that nothing keeps: first the ones whose only user has ended, then the least recently touched
SELECT json_group_array(session_id)
FROM (
    SELECT s.session_id, EXISTS (
        SELECT 1 FROM json_each(:users) AS j LEFT JOIN instances AS i ON i.instance_id = j.value ->> 1
        WHERE j.value ->> 0 = s.session_id
          AND (i.instance_id IS NULL OR i.status IN ('completed', 'failed', 'cancelled'))
    ) AS is_over
    FROM sessions AS s
    WHERE s.worker_id = :worker_id AND s.locked_until > :now AND s.incarnation = :incarnation
      AND (s.touched_at <= :rested OR is_over)
      AND NOT EXISTS (SELECT 1 FROM worker_queue AS q WHERE q.session_id = s.session_id)
      AND NOT EXISTS (SELECT 1 FROM session_holds AS h WHERE h.session_id = s.session_id AND h.until > :now)
    ORDER BY is_over DESC, s.touched_at
    LIMIT :limit
);

-- offer: leave items of sessions that no worker holds to one of them
UPDATE worker_queue SET route = :route
WHERE session_id IN (SELECT value FROM json_each(:session_ids)) AND route IN (SELECT value FROM json_each(:new));
