-- peek: whether the caller is alive, has room for a session, and has something to fetch without claiming one
SELECT w.draining,
       (SELECT count(*) FROM (
           SELECT 1 FROM sessions
           WHERE worker_id = :worker_id AND locked_until > :now AND incarnation = :incarnation LIMIT :max_sessions
       )) < :max_sessions,
       EXISTS (
           SELECT 1 FROM worker_queue AS q
           WHERE q.route = :own AND q.visible_at <= :now
             AND (q.lock_token IS NULL OR q.locked_until <= :now
                  OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now))
       ) OR EXISTS (
           SELECT 1 FROM worker_queue AS q
           WHERE q.route = 'free' AND q.visible_at <= :now
             AND (q.lock_token IS NULL OR q.locked_until <= :now
                  OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now))
             AND (q.unknown_since IS NULL OR q.unknown_since <= :unknown_before
                  OR q.name IN (SELECT value FROM json_each(:names)))
       )
FROM workers AS w
WHERE w.worker_id = :worker_id AND w.incarnation = :incarnation AND w.locked_until > :now;

-- peek_new: whether there is something to fetch that claims a session
SELECT EXISTS (
    SELECT 1 FROM worker_queue AS q
    WHERE q.route = 'new' AND q.visible_at <= :now
      AND (q.lock_token IS NULL OR q.locked_until <= :now
           OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now))
      AND (q.unknown_since IS NULL OR q.unknown_since <= :unknown_before
           OR q.name IN (SELECT value FROM json_each(:names)))
);

-- next_due: when the next item on the caller's own route, or a free one, or (with room for its session) a new one is visible
SELECT min(due) FROM (
    SELECT min(visible_at) AS due FROM worker_queue WHERE route = :own AND visible_at > :now
    UNION ALL
    SELECT min(visible_at) FROM worker_queue WHERE route = 'free' AND visible_at > :now
    UNION ALL
    SELECT min(visible_at) FROM worker_queue WHERE route = 'new' AND visible_at > :now AND :room
);

-- scan: visible items of one route that nobody has in hand, oldest first, with the truth about their sessions
SELECT q.id, q.instance_id, q.execution_id, q.activity_id, q.name, q.payload, q.session_id,
       q.attempts, q.failures, q.unknown_since,
       s.worker_id, s.incarnation, s.epoch, s.locked_until > :now AND w.worker_id IS NOT NULL
FROM worker_queue AS q
LEFT JOIN sessions AS s ON s.session_id = q.session_id
LEFT JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation AND w.locked_until > :now
WHERE q.route = :route AND q.visible_at <= :now
  AND (q.lock_token IS NULL OR q.locked_until <= :now
       OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now))
  AND (:any_name OR q.unknown_since IS NULL OR q.unknown_since <= :unknown_before
       OR q.name IN (SELECT value FROM json_each(:names)))
ORDER BY q.visible_at, q.id;

-- lock: deliver an item to the caller
UPDATE worker_queue SET
    lock_worker = :worker_id, lock_incarnation = :incarnation, lock_token = :token, locked_until = :locked_until,
    attempts = attempts + 1,
    unknown_since = CASE WHEN :known THEN NULL ELSE unknown_since END
WHERE id = :id;

-- find: an item by its live token
SELECT id, session_id, lock_incarnation FROM worker_queue
WHERE instance_id = :instance_id AND execution_id = :execution_id AND activity_id = :activity_id
  AND lock_token = :token AND locked_until > :now;

-- has_token: whether an item still carries a token
SELECT EXISTS (
    SELECT 1 FROM worker_queue
    WHERE instance_id = :instance_id AND execution_id = :execution_id AND activity_id = :activity_id
      AND lock_token = :token
);

-- extend: move the end of an item's lock
UPDATE worker_queue SET locked_until = :locked_until WHERE id = :id;

-- remove: an item that is finished
DELETE FROM worker_queue WHERE id = :id;

-- give_back: unlock an item and count what came of it
UPDATE worker_queue SET
    lock_worker = NULL, lock_incarnation = NULL, lock_token = NULL, locked_until = NULL,
    route = :route,
    visible_at = CASE WHEN :delay > 0 THEN :now + :delay ELSE visible_at END,
    attempts = attempts - :uncounted,
    failures = failures + :failed,
    unknown_since = CASE WHEN :unknown THEN coalesce(unknown_since, :now) ELSE unknown_since END
WHERE id = :id;

-- disown: unlock what an incarnation has in hand under tokens that it does not know; those deliveries never happened
UPDATE worker_queue SET
    lock_worker = NULL, lock_incarnation = NULL, lock_token = NULL, locked_until = NULL, attempts = attempts - 1
WHERE lock_incarnation = :incarnation AND lock_token NOT IN (SELECT value FROM json_each(:known));

-- insert: queue an item, or lock it to the committer at once
INSERT INTO worker_queue (
    instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
    lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
