-- put: the row of a worker
INSERT INTO workers AS w (worker_id, incarnation, locked_until, draining, started_at, labels, capacity, app,
    code_version, code_since, tags, only_tagged, registered, interfaces, named)
VALUES (%(worker)s, %(incarnation)s, clock() + %(lease)s * interval '1 s', false, clock(), %(labels)s::jsonb,
    %(capacity)s, %(app)s, %(code)s, version_since(%(worker)s, %(app)s, %(code)s), %(tags)s,
    %(only_tagged)s, %(registered)s::jsonb, %(interfaces)s, %(named)s)
ON CONFLICT (worker_id) DO UPDATE

-- register: take the name and its sessions, each with a new epoch; a trigger notifies watchers
-- include put
SET incarnation = excluded.incarnation, locked_until = clock() + %(lease)s * interval '1 s', draining = w.drain_wanted,
    started_at = clock(), labels = excluded.labels, capacity = excluded.capacity, app = excluded.app,
    code_version = excluded.code_version, code_since = excluded.code_since, tags = excluded.tags,
    only_tagged = excluded.only_tagged, registered = excluded.registered, interfaces = excluded.interfaces,
    named = excluded.named
RETURNING clock();

UPDATE sessions s SET incarnation = %(incarnation)s, epoch = nextval('epochs')
FROM (
    SELECT session_id FROM sessions
    WHERE worker_id = %(worker)s AND locked_until > clock()
      AND CASE WHEN tag IS NULL THEN NOT %(only_tagged)s ELSE %(tags)s::text[] && ARRAY[tag, 'any'] END
    ORDER BY session_id FOR NO KEY UPDATE
) own
WHERE s.session_id = own.session_id AND s.incarnation <> %(incarnation)s;

-- resume: come back under the same incarnation, unless another has the name
-- include put
SET locked_until = clock() + %(lease)s * interval '1 s', draining = w.drain_wanted, labels = excluded.labels,
    capacity = excluded.capacity,
    tags = excluded.tags, only_tagged = excluded.only_tagged, registered = excluded.registered,
    interfaces = excluded.interfaces
WHERE w.incarnation = %(incarnation)s
RETURNING clock();

-- reclaim_routes: items of the caller's sessions that were routed to any worker in the meantime
UPDATE worker_queue q SET route = %(route)s
FROM (
    SELECT q.instance_id, q.execution_id, q.activity_id
    FROM sessions s JOIN worker_queue q ON q.session_id = s.session_id AND q.route >= 'new' AND q.route < 'new:'
    WHERE s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s AND s.locked_until > clock()
    LIMIT %(reroute)s FOR NO KEY UPDATE OF q SKIP LOCKED
) stray
WHERE q.instance_id = stray.instance_id AND q.execution_id = stray.execution_id AND q.activity_id = stray.activity_id

-- renew: extend a lease that has not ended; the incarnation that has the name, if it is not the caller
WITH renewed AS (
    UPDATE workers SET locked_until = clock() + %(lease)s * interval '1 s', labels = coalesce(%(labels)s::jsonb, labels)
    WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND locked_until > clock()
    RETURNING clock() AS now, draining
)
SELECT r.now, r.draining, (SELECT incarnation FROM workers WHERE worker_id = %(worker)s)
FROM (SELECT) one LEFT JOIN renewed r ON true

-- drain: stop claiming, and free the sessions that run nothing
-- A claim under way has the row of the worker locked too, so each sees the effect of the other.
UPDATE workers SET draining = true
WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND (drain_wanted OR NOT %(if_wanted)s)
RETURNING 1;

-- A fetch under way has its sessions locked: wait for it before looking at running items.
SELECT FROM sessions WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND locked_until > clock()
ORDER BY session_id FOR NO KEY UPDATE;

WITH room AS MATERIALIZED (
    -- Of workers of newer code, without what was freed for them before. NULL: any worker may have the sessions.
    SELECT CASE WHEN %(restarts)s THEN greatest(0, (
        SELECT coalesce(sum(n.room), 0) FROM newer_workers n WHERE n.newer_than = %(worker)s AND n.room > 0) - (
        SELECT count(*) FROM sessions s
        WHERE s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s AND s.freed_by = 'drained')) END AS n
), idle AS MATERIALIZED (
    SELECT s.session_id FROM sessions s
    WHERE s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s AND s.locked_until > clock()
      AND EXISTS (SELECT FROM workers w WHERE w.worker_id = %(worker)s AND w.draining)
      AND NOT EXISTS (
          SELECT FROM worker_queue q
          WHERE q.session_id = s.session_id AND q.lock_incarnation = %(incarnation)s AND q.locked_until > clock())
    ORDER BY EXISTS (SELECT FROM worker_queue q WHERE q.session_id = s.session_id) DESC, s.touched_at DESC
    LIMIT (SELECT n FROM room)
), freed AS (
    UPDATE sessions s SET locked_until = clock(), freed_by = 'drained'
    FROM idle WHERE s.session_id = idle.session_id
    RETURNING s.session_id
)
SELECT free_items(ARRAY (SELECT session_id FROM freed), %(reroute)s);

SELECT count(*) FROM held_sessions WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s

-- leave: the name goes to an incarnation that keeps the sessions until the next one registers, for some seconds
UPDATE workers SET incarnation = %(left)s, locked_until = clock() + %(grace)s * interval '1 s', draining = true
WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND locked_until > clock() AND NOT drain_wanted
  AND EXISTS (
      SELECT FROM sessions s
      WHERE s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s AND s.locked_until > clock());

UPDATE sessions s SET incarnation = %(left)s
FROM (
    SELECT session_id FROM sessions
    WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND locked_until > clock()
      AND EXISTS (SELECT FROM workers WHERE worker_id = %(worker)s AND incarnation = %(left)s)
    ORDER BY session_id FOR NO KEY UPDATE
) own
WHERE s.session_id = own.session_id AND s.incarnation = %(incarnation)s;

UPDATE orchestrator_queue o SET route = 'new'
FROM (
    SELECT o.id FROM orchestrator_queue o
    WHERE o.route = %(route)s
      AND EXISTS (SELECT FROM workers WHERE worker_id = %(worker)s AND incarnation = %(left)s)
    LIMIT %(reroute)s FOR NO KEY UPDATE SKIP LOCKED
) m
WHERE o.id = m.id;

-- release: end the lease, then free what was held under it
UPDATE workers SET locked_until = clock()
WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND locked_until > clock();

WITH gone AS MATERIALIZED (
    SELECT draining FROM workers WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s
), own AS MATERIALIZED (
    SELECT session_id FROM sessions
    WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND locked_until > clock()
    ORDER BY session_id FOR NO KEY UPDATE
), freed AS (
    UPDATE sessions s
    SET locked_until = clock(), freed_by = CASE WHEN (SELECT draining FROM gone) THEN 'drained' ELSE 'lease_expired' END
    FROM own WHERE s.session_id = own.session_id
), items AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id FROM worker_queue q
    WHERE q.route = %(route)s AND EXISTS (SELECT FROM gone)
    LIMIT %(reroute)s FOR NO KEY UPDATE SKIP LOCKED
), messages AS MATERIALIZED (
    SELECT o.id FROM orchestrator_queue o
    WHERE o.route = %(route)s AND EXISTS (SELECT FROM gone)
    LIMIT %(reroute)s FOR NO KEY UPDATE SKIP LOCKED
), items_marked AS (
    UPDATE worker_queue q SET route = 'new' FROM items m
    WHERE q.instance_id = m.instance_id AND q.execution_id = m.execution_id AND q.activity_id = m.activity_id
)
UPDATE orchestrator_queue o SET route = 'new' FROM messages m WHERE o.id = m.id

-- list: all workers, with the sessions that each holds: counted while they are few, else as it said last
WITH seen AS MATERIALIZED (
    -- All in one pass: the rows of one worker are far from each other.
    SELECT worker_id, incarnation, locked_until FROM sessions LIMIT %(most)s
), held AS (
    SELECT worker_id, incarnation, count(*) AS sessions FROM seen
    WHERE locked_until > (SELECT clock()) AND (SELECT count(*) FROM seen) < %(most)s
    GROUP BY worker_id, incarnation
), named AS MATERIALIZED (
    -- An application_name from the URL belongs to no worker.
    SELECT application_name AS name FROM pg_stat_activity WHERE datname = current_database()
)
SELECT w.worker_id, w.incarnation, w.locked_until > clock(), w.draining,
    extract(epoch FROM w.locked_until - clock())::float8, w.started_at,
    CASE WHEN w.locked_until <= clock() THEN 0
         WHEN (SELECT count(*) FROM seen) < %(most)s THEN coalesce(h.sessions, 0)
         ELSE coalesce(w.sessions, 0) END,
    w.capacity, w.code_version, w.code_since, w.drain_wanted, w.only_tagged,
    -- PostgreSQL cuts names after 63 bytes.
    (SELECT nullif(count(*), 0) FROM named WHERE name IN (
        left('affinity lease ' || w.worker_id, 63), left('affinity ' || w.worker_id || ' commit', 63),
        left('affinity ' || w.worker_id || ' fetch', 63), left('affinity ' || w.worker_id || ' misc', 63))),
    w.labels::text, w.registered::text, array_to_json(w.tags)::text
FROM workers w LEFT JOIN held h ON h.worker_id = w.worker_id AND h.incarnation = w.incarnation
ORDER BY w.worker_id

-- code: what workers have code for, once for those that have the same
SELECT bool_or(locked_until > clock()), registered::text, interfaces FROM workers GROUP BY registered, interfaces

-- demand: how many workers the sessions need
SELECT held, waiting, capacity, desired FROM desired_workers

-- want_drain: drain a worker, or let it take work again
UPDATE workers
SET drain_wanted = %(wanted)s, draining = CASE WHEN drain_wanted OR %(wanted)s THEN %(wanted)s ELSE draining END
WHERE worker_id = %(worker)s
RETURNING 1

-- drain_wanted: the effect of want_drain, for `with_shares`
SELECT 1, 'done' FROM result
