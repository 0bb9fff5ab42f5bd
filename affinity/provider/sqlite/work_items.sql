-- peek: whether the caller is draining, how many workers could claim, how many sessions it holds, and whether there is
-- something to fetch without claiming one
SELECT w.draining,
       (SELECT count(*) FROM workers WHERE locked_until > :now AND NOT draining),
       (SELECT count(*) FROM sessions
        WHERE worker_id = :worker_id AND locked_until > :now AND incarnation = :incarnation),
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
                  OR q.name IN (SELECT value FROM json_each(:names))
                     AND (q.needs IS NULL OR q.needs IN (SELECT value FROM json_each(:names))))
       )
FROM workers AS w
WHERE w.worker_id = :worker_id AND w.incarnation = :incarnation AND w.locked_until > :now;

-- peek_new: whether there is something to fetch that claims a session
SELECT EXISTS (
    SELECT 1 FROM worker_queue AS q
    WHERE q.route IN ('new', :offer) AND q.visible_at <= :now
      AND (q.lock_token IS NULL OR q.locked_until <= :now
           OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now))
      AND (q.unknown_since IS NULL OR q.unknown_since <= :unknown_before
           OR q.name IN (SELECT value FROM json_each(:names))
              AND (q.needs IS NULL OR q.needs IN (SELECT value FROM json_each(:names))))
);

-- count_new: items that claim a session and are anyone's, as far as it matters
SELECT count(*) FROM (SELECT 1 FROM worker_queue WHERE route = 'new' AND visible_at <= :now LIMIT :count);

-- count_free: session-free items that may be fetched, as far as it matters
SELECT count(*) FROM (
    SELECT 1 FROM worker_queue AS q
    WHERE q.route = 'free' AND q.visible_at <= :now
      AND (q.lock_token IS NULL OR q.locked_until <= :now
           OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now))
      AND (q.unknown_since IS NULL OR q.unknown_since <= :unknown_before
           OR q.name IN (SELECT value FROM json_each(:names))
              AND (q.needs IS NULL OR q.needs IN (SELECT value FROM json_each(:names))))
    LIMIT :count
);

-- next_due: when the next item on the caller's own route is visible, or a free one, or one that claims a session
SELECT min(due) FROM (
    SELECT min(visible_at) AS due FROM worker_queue WHERE route = :own AND visible_at > :now
    UNION ALL
    SELECT min(visible_at) FROM worker_queue WHERE route = 'free' AND visible_at > :now
    UNION ALL
    SELECT min(visible_at) FROM worker_queue WHERE route = 'new' AND visible_at > :now AND :claims
);

-- scan: visible items of one route that nobody has in hand, oldest first, with the truth about their sessions
SELECT json_group_array(json_array(
    id, instance_id, execution_id, activity_id, name, session_id, attempts, failures, unknown_for, queued_for, visible_at,
    worker_id, incarnation, epoch, held
))
FROM (
    SELECT q.id, q.instance_id, q.execution_id, q.activity_id, q.name, q.session_id, q.attempts, q.failures,
           :now - q.unknown_since AS unknown_for, :now - q.enqueued_at AS queued_for, q.visible_at,
           s.worker_id, s.incarnation, s.epoch, s.locked_until > :now AND w.worker_id IS NOT NULL AS held
    FROM worker_queue AS q
    LEFT JOIN sessions AS s ON s.session_id = q.session_id
    LEFT JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation AND w.locked_until > :now
    WHERE q.route = :route AND q.visible_at <= :now
      AND (q.lock_token IS NULL OR q.locked_until <= :now
           OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now))
      AND (:any_name OR q.unknown_since IS NULL OR q.unknown_since <= :unknown_before
           OR q.name IN (SELECT value FROM json_each(:names))
              AND (q.needs IS NULL OR q.needs IN (SELECT value FROM json_each(:names))))
    ORDER BY q.visible_at, q.id
    LIMIT :limit
);

-- lock: deliver items to the caller; one whose name it knows is unknown no more
UPDATE worker_queue SET
    lock_worker = :worker_id, lock_incarnation = :incarnation, lock_token = j.value ->> 1, locked_until = :locked_until,
    attempts = attempts + (attempts - failures < :uncounted_after),
    unknown_since = CASE
        WHEN name IN (SELECT value FROM json_each(:names))
             AND (needs IS NULL OR needs IN (SELECT value FROM json_each(:names))) THEN NULL
        ELSE unknown_since
    END
FROM json_each(:rows) AS j
WHERE worker_queue.id = j.value ->> 0;

-- payloads: of some items, in order, as many as fit; each with the bytes of all up to it
-- (sizes are summed first, so that a payload that does not fit is never held in memory together with others)
WITH sized AS MATERIALIZED (
    SELECT j.key AS place, q.id, length(CAST(q.payload AS BLOB)) AS size
    FROM json_each(:ids) AS j CROSS JOIN worker_queue AS q ON q.id = j.value
), summed AS (
    SELECT id, size, sum(size) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS total FROM sized
)
SELECT json_group_array(json_array(q.id, q.payload, summed.total))
FROM summed CROSS JOIN worker_queue AS q ON q.id = summed.id
WHERE summed.total - summed.size < :max_bytes;

-- find: items by their live tokens, each with its place in the list of locks
SELECT json_group_array(json_array(j.key, q.id, q.session_id, q.lock_incarnation))
FROM json_each(:locks) AS j
CROSS JOIN worker_queue AS q
    ON q.instance_id = j.value ->> '$[0][0]' AND q.execution_id = j.value ->> '$[0][1]'
    AND q.activity_id = j.value ->> '$[0][2]'
WHERE q.lock_token = j.value ->> 1 AND q.locked_until > :now;

-- carries: which of some items still carry the tokens of a list of locks, by their place in it
SELECT json_group_array(j.key)
FROM json_each(:locks) AS j
CROSS JOIN worker_queue AS q
    ON q.instance_id = j.value ->> '$[0][0]' AND q.execution_id = j.value ->> '$[0][1]'
    AND q.activity_id = j.value ->> '$[0][2]'
WHERE q.lock_token = j.value ->> 1;

-- extend: move the end of locks
UPDATE worker_queue SET locked_until = :locked_until WHERE id IN (SELECT value FROM json_each(:rows));

-- remove: items that are finished
DELETE FROM worker_queue WHERE id IN (SELECT value FROM json_each(:rows));

-- give_back: unlock an item and count what came of it
UPDATE worker_queue SET
    lock_worker = NULL, lock_incarnation = NULL, lock_token = NULL, locked_until = NULL,
    route = :route,
    visible_at = CASE WHEN :delay > 0 THEN :now + :delay ELSE visible_at END,
    attempts = attempts - :uncounted,
    failures = failures + :failed,
    unknown_since = CASE WHEN :unknown THEN coalesce(unknown_since, :now) ELSE unknown_since END,
    needs = CASE WHEN :unknown THEN :needs ELSE needs END,
    last_error = coalesce(:error, last_error)
WHERE id = :id;

-- begin: count a delivery that its fetch did not count
UPDATE worker_queue SET attempts = max(attempts, :attempt) WHERE id = :id;

-- release_unknown_locks: free items locked under tokens that this incarnation does not know; `delivered` keep their attempt
UPDATE worker_queue SET
    lock_worker = NULL, lock_incarnation = NULL, lock_token = NULL, locked_until = NULL,
    attempts = attempts - (lock_token NOT IN (SELECT value FROM json_each(:delivered)))
WHERE lock_incarnation = :incarnation AND lock_token NOT IN (SELECT value FROM json_each(:known));

-- insert: queue items, or lock those that come with a token to the committer at once
INSERT INTO worker_queue (
    instance_id, execution_id, activity_id, name, session_id, route, visible_at,
    lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at, payload
)
SELECT value ->> '$[0][0]', value ->> '$[0][1]', value ->> '$[0][2]', value ->> 1, value ->> 2, value ->> 3,
       :now + max(value ->> 4, 0.0),
       iif(value ->> 5 IS NULL, NULL, :worker_id), iif(value ->> 5 IS NULL, NULL, :incarnation), value ->> 5,
       iif(value ->> 5 IS NULL, NULL, :locked_until), value ->> 5 IS NOT NULL, :now, value ->> 6
FROM json_each(:rows);
