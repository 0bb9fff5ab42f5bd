-- unlocked: an item that no live worker has locked; one with a limited gate is delivered once for each admission
AND (q.lock_token IS NULL OR q.limited IS NOT 1 AND (
     q.locked_until <= :now OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now)));

-- known: an item that the caller has code for, or that has been unknown to all workers for a while
AND (q.unknown_since IS NULL OR q.unknown_since <= :unknown_before
     OR q.name IN (SELECT value FROM json_each(:names))
        AND (q.needs IS NULL OR q.needs IN (SELECT value FROM json_each(:names))));

-- peek: whether the caller is draining, how many workers could claim, whether they run several versions, how many
-- sessions it holds, whether there is something to fetch without claiming one, and which sessions are to move to it by a
-- plan with a bound
SELECT w.draining,
       (SELECT count(*) FROM workers WHERE locked_until > :now AND NOT draining),
       (SELECT min(code_version) <> max(code_version) FROM workers WHERE locked_until > :now AND NOT draining),
       (SELECT count(*) FROM sessions
        WHERE worker_id = :worker_id AND locked_until > :now AND incarnation = :incarnation),
       EXISTS (
           SELECT 1 FROM worker_queue AS q
           WHERE q.route = :own AND q.visible_at <= :now
             -- include unlocked
       ) OR EXISTS (
           SELECT 1 FROM worker_queue AS q
           WHERE q.route IN (SELECT value FROM json_each(:free)) AND q.visible_at <= :now
             -- include unlocked
             -- include known
       ),
       (SELECT json_group_array(session_id) FROM (
            -- First those of which no work runs on the holder: the others cannot be taken, and must not fill the answer.
            SELECT session_id FROM sessions AS s WHERE next_worker = :worker_id AND next_until > :now AND NOT EXISTS (
                SELECT 1 FROM worker_queue AS q
                WHERE q.session_id = s.session_id AND q.lock_incarnation = s.incarnation AND q.locked_until > :now)
            UNION ALL
            SELECT session_id FROM sessions AS s WHERE next_worker = :worker_id AND next_until > :now AND EXISTS (
                SELECT 1 FROM worker_queue AS q
                WHERE q.session_id = s.session_id AND q.lock_incarnation = s.incarnation AND q.locked_until > :now)
            LIMIT :most_assigned
        ))
FROM workers AS w
WHERE w.worker_id = :worker_id AND w.incarnation = :incarnation AND w.locked_until > :now;

-- peek_own: whether an item waits on the caller's own route; no row if the caller is not alive
SELECT EXISTS (
    SELECT 1 FROM worker_queue AS q
    WHERE q.route = :own AND q.visible_at <= :now
      -- include unlocked
)
FROM workers AS w
WHERE w.worker_id = :worker_id AND w.incarnation = :incarnation AND w.locked_until > :now;

-- peek_new: whether there is something to fetch that claims a session
SELECT EXISTS (
    SELECT 1 FROM worker_queue AS q
    WHERE q.route IN (SELECT value FROM json_each(:new) UNION ALL SELECT :offer)
      AND q.visible_at <= CASE q.route WHEN :offer THEN :now ELSE :until END
      AND (q.route = :offer OR q.enqueued_at <= :until)
      -- include unlocked
      -- include known
);

-- lower_has_room: whether a worker of the caller's set and code, with a lower ordinal, has room for a session
-- Names of one set differ in the number at their end: among them a longer name has the greater number.
SELECT EXISTS (
    SELECT 1 FROM workers AS me JOIN workers AS w
        ON rtrim(w.worker_id, '0123456789') = rtrim(me.worker_id, '0123456789')
        AND (length(w.worker_id), w.worker_id) < (length(me.worker_id), me.worker_id)
        AND w.code_version = me.code_version
    WHERE me.worker_id = :worker_id AND w.locked_until > :now AND NOT w.draining
      AND w.capacity > (
          SELECT count(*) FROM sessions AS s
          WHERE s.worker_id = w.worker_id AND s.locked_until > :now AND s.incarnation = w.incarnation)
);

-- count_new: items that any worker may take with a claim, up to a limit
SELECT count(*) FROM (
    SELECT 1 FROM worker_queue WHERE route IN (SELECT value FROM json_each(:new)) AND visible_at <= :now LIMIT :count
);

-- count_free: session-free items that may be fetched, up to a limit
SELECT count(*) FROM (
    SELECT 1 FROM worker_queue AS q
    WHERE q.route IN (SELECT value FROM json_each(:free)) AND q.visible_at <= :now
      -- include unlocked
      -- include known
    LIMIT :count
);

-- next_due: when the next item on the caller's own route is visible, or a free one, or one that claims a session
SELECT min(due) FROM (
    SELECT min(visible_at) AS due FROM worker_queue WHERE route = :own AND visible_at > :now
    UNION ALL
    SELECT (SELECT min(visible_at) FROM worker_queue WHERE route = j.value AND visible_at > :now) FROM json_each(:free) AS j
    UNION ALL
    SELECT (SELECT min(visible_at) FROM worker_queue WHERE route = j.value AND visible_at > :now AND :claims)
    FROM json_each(:new) AS j
);

-- scan: visible items of one route that are not locked, oldest first, with the leases of their sessions
SELECT json_group_array(json_array(
    id, instance_id, execution_id, activity_id, name, session_id, attempts, failures, unknown_for, queued_for, visible_at,
    order_number IS NOT NULL, limited IS 1, tag, worker_id, incarnation, epoch, held, next_worker, session_tag, session_until
))
FROM (
    SELECT q.id, q.instance_id, q.execution_id, q.activity_id, q.name, q.session_id, q.attempts, q.failures,
           :now - q.unknown_since AS unknown_for, :now - q.enqueued_at AS queued_for, q.visible_at, q.order_number, q.limited,
           q.tag, s.tag AS session_tag, s.locked_until AS session_until,
           s.worker_id, s.incarnation, s.epoch, s.locked_until > :now AND w.worker_id IS NOT NULL AS held,
           CASE WHEN s.next_worker IS NULL OR s.next_until <= :now THEN NULL ELSE (
               SELECT n.worker_id FROM workers AS n
               WHERE n.worker_id = s.next_worker AND n.locked_until > :now AND NOT n.draining
           ) END AS next_worker
    FROM worker_queue AS q
    LEFT JOIN sessions AS s ON s.session_id = q.session_id
    LEFT JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation AND w.locked_until > :now
    WHERE q.route = :route AND q.visible_at <= :until
      -- Of a worker that is outdated: visible since then, and the session free.
      AND (:until = :now OR (s.locked_until IS NULL OR s.locked_until NOT BETWEEN :until AND :now) AND q.enqueued_at <= :until)
      -- include unlocked
      AND (:any_name OR q.unknown_since IS NULL OR q.unknown_since <= :unknown_before
           OR q.name IN (SELECT value FROM json_each(:names))
              AND (q.needs IS NULL OR q.needs IN (SELECT value FROM json_each(:names))))
    ORDER BY q.visible_at, q.id
    LIMIT :limit
);

-- lock: deliver items to the caller; if it knows the name, the item is no longer unknown
UPDATE worker_queue SET
    lock_worker = :worker_id, lock_incarnation = :incarnation, lock_token = j.value ->> 1, locked_until = :locked_until,
    locked_at = :now,
    attempts = attempts + (attempts - failures < :uncounted_after),
    unknown_since = CASE
        WHEN name IN (SELECT value FROM json_each(:names))
             AND (needs IS NULL OR needs IN (SELECT value FROM json_each(:names))) THEN NULL
        ELSE unknown_since
    END
FROM json_each(:rows) AS j
WHERE worker_queue.id = j.value ->> 0;
