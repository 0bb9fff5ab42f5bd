-- of_worker: sessions that the name holds by an unexpired lock
SELECT json_group_array(session_id) FROM sessions WHERE worker_id = :worker_id AND locked_until > :now;

-- to_inherit: the sessions of a worker whose work another worker with these tags takes
SELECT json_group_array(session_id) FROM sessions
WHERE worker_id = :worker_id AND locked_until > :now
  AND iif(tag IS NULL, NOT :only_tagged, EXISTS (SELECT 1 FROM json_each(:tags) WHERE value IN (tag, 'any')));

-- count_held: sessions that an incarnation holds
SELECT count(*) FROM sessions WHERE worker_id = :worker_id AND locked_until > :now AND incarnation = :incarnation;

-- leases: rows of some sessions, with whether they are held
SELECT json_group_array(json_array(
    s.session_id, s.worker_id, s.incarnation, s.epoch, s.locked_until > :now AND w.worker_id IS NOT NULL,
    CASE WHEN s.next_worker IS NULL OR s.next_until <= :now THEN NULL ELSE (
        SELECT n.worker_id FROM workers AS n WHERE n.worker_id = s.next_worker AND n.locked_until > :now AND NOT n.draining
    ) END, s.tag, s.locked_until
))
FROM json_each(:session_ids) AS j
CROSS JOIN sessions AS s ON s.session_id = j.value
LEFT JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation AND w.locked_until > :now;

-- next_epochs: the last of :count fresh epochs
UPDATE counters SET value = value + :count WHERE name = 'epoch' RETURNING CAST(value AS INTEGER);

-- inherit: give sessions to the new incarnation of their worker; a planned move stays
UPDATE sessions SET incarnation = :incarnation, epoch = j.value ->> 1, claimed_at = :now, freed_by = NULL
FROM json_each(:rows) AS j
WHERE sessions.session_id = j.value ->> 0;

-- claim: make sessions the caller's; only its epoch tells a new lease from one that went on
INSERT INTO sessions (session_id, worker_id, incarnation, epoch, locked_until, touched_at, claimed_at, tag)
SELECT value ->> 0, :worker_id, :incarnation, value ->> 1, :locked_until, :now, :now, value ->> 2 FROM json_each(:rows) WHERE true
ON CONFLICT (session_id) DO UPDATE SET
    tag = CASE sessions.worker_id WHEN '' THEN excluded.tag ELSE sessions.tag END,
    claimed_at = CASE epoch WHEN excluded.epoch THEN claimed_at ELSE excluded.claimed_at END,
    worker_id = excluded.worker_id,
    incarnation = excluded.incarnation,
    epoch = excluded.epoch,
    locked_until = excluded.locked_until,
    touched_at = excluded.touched_at,
    freed_by = NULL, next_worker = NULL, next_until = NULL, next_reason = NULL;

-- notify_watchers: queue the messages of watches, on the routes of their owners; finished instances get none
-- A JSON object gets a last member that says where the session is now, and why.
INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
SELECT i.instance_id,
       CASE WHEN i.status = 'suspended' THEN 'suspended' WHEN i.gate IS NOT NULL THEN 'gated'
            WHEN w.worker_id IS NULL THEN 'new' ELSE 'w:' || w.worker_id END,
       :now, CASE
           WHEN watch.payload LIKE '{%}' THEN substr(watch.payload, 1, length(watch.payload) - 1) || ',"move":' || (
               SELECT json_object('worker_id', s.worker_id, 'epoch', s.epoch, 'reason', m.reason)
               FROM sessions AS s LEFT JOIN session_moves AS m ON m.epoch = s.epoch
               WHERE s.session_id = watch.session_id
           ) || '}'
           ELSE watch.payload END
FROM json_each(:rows) AS j
CROSS JOIN session_watches AS watch ON watch.session_id = j.value
CROSS JOIN instances AS i ON i.instance_id = watch.instance_id
LEFT JOIN workers AS w
    ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation AND w.locked_until > :now
WHERE i.status NOT IN ('completed', 'failed', 'cancelled');

-- renew_epochs: give sessions new epochs; holder and lease stay, and a session without a row gets one, expired
INSERT INTO sessions (session_id, worker_id, incarnation, epoch, locked_until, touched_at, claimed_at)
SELECT value ->> 0, '', '', value ->> 1, :now, :now, :now FROM json_each(:rows) WHERE true
ON CONFLICT (session_id) DO UPDATE SET epoch = excluded.epoch, claimed_at = excluded.claimed_at;

-- touch: extend the sessions among some that an incarnation holds, unless hardly anything would change
UPDATE sessions SET locked_until = :locked_until, touched_at = :now
WHERE session_id IN (SELECT value FROM json_each(:session_ids))
  AND worker_id = :worker_id AND incarnation = :incarnation
  AND locked_until > :now AND locked_until <= :touch_before;

-- free: end session locks; the rows stay, so that the same incarnation may come back to its epochs
UPDATE sessions SET locked_until = :now, freed_by = :reason
WHERE session_id IN (SELECT value FROM json_each(:session_ids))
  AND worker_id = :worker_id AND incarnation = :incarnation AND locked_until > :now;

-- leave: have sessions kept for the next start of their worker
UPDATE sessions SET incarnation = :left
WHERE worker_id = :worker_id AND incarnation = :incarnation AND locked_until > :now;

-- reroute: route queued items of sessions, as many as the limit allows
UPDATE worker_queue SET route = :route WHERE id IN (
    SELECT q.id FROM json_each(:session_ids) AS j
    CROSS JOIN worker_queue AS q ON q.session_id = j.value AND q.route < :route
    UNION ALL
    SELECT q.id FROM json_each(:session_ids) AS j
    CROSS JOIN worker_queue AS q ON q.session_id = j.value AND q.route > :route
    LIMIT :limit
);

-- idle_of_worker: sessions that an incarnation holds, without a work item in hand; sessions with work first, then the last used
SELECT json_group_array(session_id) FROM (
    SELECT s.session_id FROM sessions AS s
    WHERE s.worker_id = :worker_id AND s.locked_until > :now AND s.incarnation = :incarnation
      AND NOT EXISTS (
        SELECT 1 FROM worker_queue AS q
        WHERE q.session_id = s.session_id AND q.lock_incarnation = :incarnation AND q.locked_until > :now
      )
    ORDER BY EXISTS (SELECT 1 FROM worker_queue AS q WHERE q.session_id = s.session_id) DESC, s.touched_at DESC
);

-- count_drained: sessions that an incarnation has freed by its drain and that no worker has claimed since
SELECT count(*) FROM sessions WHERE worker_id = :worker_id AND incarnation = :incarnation AND freed_by = 'drained';

-- list: one page of sessions by id, or some of them, with the queued items of each
SELECT s.session_id, s.worker_id, s.incarnation, s.epoch, s.locked_until > :now AND w.worker_id IS NOT NULL,
       s.locked_until - :now, :now - s.touched_at,
       (SELECT count(*) FROM worker_queue AS q WHERE q.session_id = s.session_id),
       CASE WHEN s.locked_until > :now AND w.worker_id IS NOT NULL AND (s.next_until <= :now) IS NOT TRUE THEN (
           SELECT n.worker_id FROM workers AS n
           WHERE n.worker_id = s.next_worker AND n.locked_until > :now AND NOT n.draining
       ) END
FROM sessions AS s
LEFT JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation AND w.locked_until > :now
WHERE true
-- [page
  AND s.session_id > :after
-- page]
-- [of
  AND s.worker_id = :worker_id
-- of]
-- [some
  AND s.session_id IN (SELECT value FROM json_each(:session_ids))
-- some]
ORDER BY s.session_id LIMIT :limit;
