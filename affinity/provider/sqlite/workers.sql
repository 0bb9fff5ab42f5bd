-- get: who has the name, until when
SELECT incarnation, locked_until, draining FROM workers WHERE worker_id = :worker_id;

-- takes: whether a worker is alive, not draining, and takes sessions with a tag
SELECT EXISTS (
    SELECT 1 FROM workers
    WHERE worker_id = :worker_id AND locked_until > :now AND NOT draining
      AND iif(:tag IS NULL, NOT only_tagged, EXISTS (SELECT 1 FROM json_each(tags) WHERE value IN (:tag, 'any'))));

-- put: take the name and a lease; a new incarnation is a new start
INSERT INTO workers (worker_id, incarnation, locked_until, started_at, labels, capacity, app, code_version,
    code_since, tags, only_tagged, registered, interfaces, named)
VALUES (:worker_id, :incarnation, :locked_until, :now, :labels, :capacity, :app, :code_version, :code_since, :tags,
    :only_tagged, :registered, :interfaces, :named)
ON CONFLICT (worker_id) DO UPDATE SET
    started_at = CASE incarnation WHEN excluded.incarnation THEN started_at ELSE excluded.started_at END,
    incarnation = excluded.incarnation,
    locked_until = excluded.locked_until,
    draining = drain_wanted,
    labels = excluded.labels,
    capacity = excluded.capacity,
    app = excluded.app,
    code_version = excluded.code_version,
    code_since = excluded.code_since,
    tags = excluded.tags,
    only_tagged = excluded.only_tagged,
    registered = excluded.registered,
    interfaces = excluded.interfaces,
    named = excluded.named;

-- version_since: since when the version is deployed that a worker registers, and the one of its name before
SELECT (
    SELECT max(code_since) FROM workers
    WHERE app = :app AND code_version = :code_version AND (worker_id = :worker_id OR locked_until > :now)
), (
    SELECT code_since FROM workers WHERE worker_id = :worker_id AND app = :app AND code_version <> :code_version
);

-- newer_room: how many more sessions each live worker may hold that runs a newer version of the caller's app, the newest
-- Among workers that take all the work that the caller takes.
WITH me AS (
    SELECT app, code_version, code_since, tags, only_tagged FROM workers WHERE worker_id = :worker_id
), able AS (
    SELECT w.worker_id, w.incarnation, w.code_version, w.code_since, w.capacity
    FROM me JOIN workers AS w ON w.app = me.app AND w.locked_until > :now AND NOT w.draining
    WHERE (me.only_tagged OR NOT w.only_tagged)
      AND (NOT EXISTS (SELECT value FROM json_each(me.tags) EXCEPT SELECT value FROM json_each(w.tags))
           OR 'any' IN (SELECT value FROM json_each(w.tags)))
), newest AS (
    SELECT code_version, code_since FROM able
    ORDER BY code_since DESC, code_version LIMIT 1
)
SELECT n.capacity - (
    SELECT count(*) FROM sessions AS s
    WHERE s.worker_id = n.worker_id AND s.locked_until > :now AND s.incarnation = n.incarnation
) AS room
FROM me JOIN newest ON newest.code_version <> me.code_version AND newest.code_since > me.code_since
JOIN able AS n ON n.code_version = newest.code_version
WHERE room > 0;

-- extend: move the end of a lease; also to now, which ends it
UPDATE workers SET locked_until = :locked_until, labels = coalesce(:labels, labels)
WHERE worker_id = :worker_id AND incarnation = :incarnation;

-- leave: the name goes to an incarnation that keeps the sessions until the next one registers
UPDATE workers SET incarnation = :left, locked_until = :locked_until, draining = 1 WHERE worker_id = :worker_id;

-- set_draining: claim nothing any more
UPDATE workers SET draining = 1
WHERE worker_id = :worker_id AND incarnation = :incarnation AND (drain_wanted OR NOT :if_wanted);

-- list: all workers by id, with the sessions that each holds: counted while they are few, else as it said last
SELECT worker_id, incarnation, locked_until > :now, draining, locked_until - :now, started_at,
       CASE WHEN locked_until <= :now THEN 0
            WHEN (SELECT count(*) FROM (SELECT 1 FROM sessions AS few LIMIT :most)) < :most THEN (
           SELECT count(*) FROM sessions AS s
           WHERE s.worker_id = workers.worker_id AND s.locked_until > :now AND s.incarnation = workers.incarnation
       ) ELSE coalesce(sessions, 0) END, capacity, code_version, code_since, drain_wanted,
       only_tagged, NULL, labels, registered, tags
FROM workers
ORDER BY worker_id;

-- code: what workers have code for, once for those that have the same
SELECT max(locked_until > :now), registered, interfaces FROM workers GROUP BY registered, interfaces;

-- demand: sessions that a worker holds, sessions that have work and no holder, and how many one worker may hold
-- The routes are of any worker, with and without an offer, and of workers that died: where none is left, no sweep changes them.
-- The capacity is the mean of the workers that take sessions now; else of the ones that did last; else the default.
SELECT (
    SELECT count(*) FROM sessions AS s JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation
    WHERE s.locked_until > :now AND w.locked_until > :now
), (
    SELECT count(DISTINCT q.session_id) FROM (
        SELECT session_id, visible_at FROM worker_queue WHERE route >= 'new' AND route < 'new;'
        UNION ALL
        SELECT q.session_id, q.visible_at
        FROM workers AS w CROSS JOIN worker_queue AS q ON q.route = 'w:' || w.worker_id
        WHERE w.locked_until <= :now
    ) AS q
    WHERE q.visible_at <= :now AND NOT EXISTS (
        SELECT 1 FROM sessions AS s JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation
        WHERE s.session_id = q.session_id AND s.locked_until > :now AND w.locked_until > :now)
), coalesce(
    (SELECT avg(capacity) FROM workers WHERE capacity > 0 AND locked_until > :now AND NOT draining),
    (SELECT avg(capacity) FROM workers WHERE capacity > 0),
    100.0
);

-- want_drain: drain a worker, or let it take work again
UPDATE workers SET draining = iif(drain_wanted OR :wanted, :wanted, draining), drain_wanted = :wanted
WHERE worker_id = :worker_id;

-- drain_wanted: whether an operator drains the worker
SELECT 1 FROM workers WHERE worker_id = :worker_id AND incarnation = :incarnation AND drain_wanted;
