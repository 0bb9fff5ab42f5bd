-- busy: which of some sessions their holders have work of in hand
SELECT json_group_array(s.session_id)
FROM json_each(:session_ids) AS j
CROSS JOIN sessions AS s ON s.session_id = j.value
WHERE EXISTS (
    SELECT 1 FROM worker_queue AS q
    WHERE q.session_id = s.session_id AND q.lock_incarnation = s.incarnation AND q.locked_until > :now
);

-- room: of a caller that takes work, whether another worker of its app has room, and how many sessions the caller holds
SELECT EXISTS (
        SELECT 1 FROM workers AS w
        WHERE w.app = me.app AND w.worker_id <> me.worker_id AND w.locked_until > :now AND NOT w.draining
          AND w.capacity > (
              SELECT count(*) FROM sessions AS s
              WHERE s.worker_id = w.worker_id AND s.locked_until > :now AND s.incarnation = w.incarnation
          ) + (  -- what was offered to it, for which it may just have made room
              SELECT count(*) FROM worker_queue AS q WHERE q.route = 'new:' || w.worker_id AND q.visible_at <= :now)),
       (SELECT count(*) FROM sessions
        WHERE worker_id = :worker_id AND locked_until > :now AND incarnation = :incarnation)
FROM workers AS me
WHERE me.worker_id = :worker_id AND me.incarnation = :incarnation AND me.locked_until > :now AND NOT me.draining;

-- waiting: sessions that no worker holds and whose work waits since some time, oldest first, with the time of this work
SELECT json_group_array(json_array(session_id, first))
FROM (
    SELECT session_id, min(visible_at) AS first
    FROM (
        SELECT q.session_id, q.visible_at
        FROM worker_queue AS q
        LEFT JOIN sessions AS s ON s.session_id = q.session_id AND s.locked_until > :now
        LEFT JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation AND w.locked_until > :now
        WHERE q.route IN (SELECT value FROM json_each(:new)) AND q.visible_at <= :since AND w.worker_id IS NULL
          AND (q.lock_token IS NULL OR q.limited IS NOT 1 AND (q.locked_until <= :now
               OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now)))
          AND q.name IN (SELECT value FROM json_each(:names))
          AND (q.needs IS NULL OR q.needs IN (SELECT value FROM json_each(:names)))
        ORDER BY q.visible_at, q.id
        LIMIT :limit
    )
    GROUP BY session_id
    ORDER BY first
);

-- idle: sessions of the caller that nothing keeps, in the order in which they make room, and whether they are in use
-- First the ones whose only user has ended, then the ones that the caller does not know, then the others in its order.
WITH listed (session_id, place, in_use, is_over) AS (
    SELECT j.value ->> 0, j.key, j.value ->> 2,
           j.value ->> 1 IS NOT NULL AND (
               i.instance_id IS NULL OR i.status IN ('completed', 'failed', 'cancelled'))
    FROM json_each(:known) AS j LEFT JOIN instances AS i ON i.instance_id = j.value ->> 1
    UNION ALL
    SELECT session_id, NULL, NULL, NULL FROM sessions
    WHERE worker_id = :worker_id AND locked_until > :now AND incarnation = :incarnation
      AND session_id NOT IN (SELECT value ->> 0 FROM json_each(:known))
)
SELECT json_group_array(json_array(session_id, in_use))
FROM (
    SELECT s.session_id, listed.in_use AND NOT listed.is_over AS in_use
    FROM listed CROSS JOIN sessions AS s ON s.session_id = listed.session_id
    WHERE s.worker_id = :worker_id AND s.locked_until > :now AND s.incarnation = :incarnation
      AND NOT EXISTS (SELECT 1 FROM worker_queue AS q WHERE q.session_id = s.session_id)
      AND NOT EXISTS (SELECT 1 FROM session_holds AS h WHERE h.session_id = s.session_id AND h.until > :now)
    ORDER BY listed.is_over IS NOT TRUE, listed.in_use IS TRUE, listed.place, s.touched_at
    LIMIT :limit
);

-- offer: leave items of sessions that no worker holds to one of them
UPDATE worker_queue SET route = :route
WHERE session_id IN (SELECT value FROM json_each(:session_ids)) AND route IN (SELECT value FROM json_each(:new));
