-- Two rules keep the plans stable. A worker may have many sessions and an empty queue, or few sessions and a full queue,
-- and a plan is made without knowing which. So a fetch reads along the index of the queue, and looks up the session of
-- each item in a scalar subquery, which the planner never turns into a join or a hash table. And a list of sessions is
-- looked up by id, never by worker: `(…) IS TRUE` matches no index.

-- lock_sessions: of locked items: the sessions that the caller keeps, and the items of these, as many as are wanted
), held AS MATERIALIZED (
    -- Locked, so that a session cannot change before the commit.
    SELECT s.session_id, s.epoch, s.locked_until
-- [tagged
        , s.tag
-- tagged]
    FROM sessions s
    WHERE s.session_id = ANY (ARRAY (SELECT session_id FROM locked))
      AND keeps_session(s, %(worker)s, %(incarnation)s)
    ORDER BY s.session_id FOR NO KEY UPDATE
), touched AS (
    UPDATE sessions s SET locked_until = clock() + %(session_lock)s * interval '1 s', touched_at = clock()
    FROM held WHERE s.session_id = held.session_id
      AND held.locked_until < clock() + %(touch_below)s * interval '1 s'
), held_here AS MATERIALIZED (
    -- As arrays: a join of two lists takes as long as their product.
    SELECT array_agg(session_id) AS sessions, array_agg(epoch) AS epochs
-- [tagged
        , array_agg(tag) AS tags
-- tagged]
    FROM held
), picked AS MATERIALIZED (
    -- By bytes again: the locked items may be others than the chosen ones.
    SELECT *
    FROM (
        SELECT l.*, h.epochs[l.place] AS epoch,
-- [tagged
            h.tags[l.place] AS tag,
-- tagged]
            row_number() OVER in_order AS n, sum(l.size) OVER in_order AS total
        FROM held_here h
        CROSS JOIN LATERAL (SELECT *, array_position(h.sessions, session_id) AS place FROM locked) l
        WHERE l.session_id IS NULL OR l.place IS NOT NULL
        WINDOW in_order AS (ORDER BY l.visible_at, l.place IS NULL ROWS UNBOUNDED PRECEDING)
    ) l
    WHERE n <= %(limit)s AND total - size < %(max_bytes)s

-- take: lock what was picked to the caller
-- Part `claim`: where its route changes.
    UPDATE worker_queue q
    SET lock_worker = %(worker)s, lock_incarnation = %(incarnation)s, lock_token = %(token)s || '.' || p.n,
        locked_until = clock() + %(item_lock)s * interval '1 s', locked_at = clock(),
-- [claim
        route = %(route)s,
-- claim]
        attempts = q.attempts + (q.attempts - q.failures < %(uncounted_after)s)::int,
        unknown_since = CASE WHEN q.name = ANY (%(names)s) AND (q.needs IS NULL OR q.needs = ANY (%(names)s)) THEN NULL
            ELSE q.unknown_since END
    FROM picked p
    WHERE q.instance_id = p.instance_id AND q.execution_id = p.execution_id AND q.activity_id = p.activity_id
    RETURNING p.n, q.instance_id, q.execution_id, q.activity_id, q.lock_token, q.name, q.payload, q.session_id, p.epoch,
        p.attempts + 1, q.failures, extract(epoch FROM clock() - p.unknown_since)::float8 AS unknown_for,
        extract(epoch FROM clock() - q.enqueued_at)::float8 AS queued_for, q.order_session IS NOT NULL AS ordered,
        q.limited IS TRUE AS limited
-- [tagged
        , p.tag
-- tagged]

-- fetch: the oldest items that the caller may have, and how many sessions it is to claim for the rest
-- Parts: `plain` for a worker without tags, `tagged` for one that has some; so in `claim`.
-- It reads each kind without locks, then locks the items that it has chosen. The second read begins where the first
-- found an item, so that it does not read all locked items again.
WITH fleet AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE NOT draining) AS n, coalesce(bool_or(me), false) AS alive,
        coalesce(bool_or(me AND NOT draining), false) AND %(max_sessions)s > 0 AS may_claim,
        coalesce(bool_or(me AND draining), false) AS draining,
        CASE WHEN min(code_version) <> max(code_version) THEN is_outdated(%(worker)s) ELSE false END
        OR CASE WHEN %(pack)s AND EXISTS (
            SELECT FROM worker_queue q WHERE q.route = 'new' AND q.visible_at <= (SELECT clock())
        ) THEN lower_worker_has_room(%(worker)s) ELSE false END AS outdated
    FROM (
        SELECT draining, code_version, worker_id = %(worker)s AND incarnation = %(incarnation)s AS me FROM alive_workers
    ) w
), found AS MATERIALIZED (
    -- 1: of sessions that the caller holds; 2: offered to the caller; 3: without a session; 4: of sessions that no worker holds.
    SELECT part.kind,
-- [tagged
        part.route,
-- tagged]
        q.visible_at, q.session_id, q.size
    FROM fleet f
-- [plain
    CROSS JOIN LATERAL (VALUES
        (1, %(route)s, f.alive, NULL), (2, %(offer)s, f.may_claim, NULL), (3, 'free', f.alive, NULL),
        (4, 'new', f.may_claim, CASE WHEN f.outdated THEN clock() - %(newer_seconds)s * interval '1 s' END)
    ) AS part (kind, route, is_wanted, until)
-- plain]
-- [tagged
    CROSS JOIN LATERAL (
        VALUES (1, %(route)s, f.alive, NULL::timestamptz), (2, %(offer)s, f.may_claim, NULL)
        UNION ALL SELECT 3, r.name, f.alive, NULL FROM unnest(%(free)s::text[]) AS r (name)
        UNION ALL
        SELECT 4, r.name, f.may_claim, CASE WHEN f.outdated THEN clock() - %(newer_seconds)s * interval '1 s' END
        FROM unnest(%(new)s::text[]) AS r (name)
    ) AS part (kind, route, is_wanted, until)
-- tagged]
    CROSS JOIN LATERAL (
        SELECT q.visible_at, q.session_id, octet_length(q.payload) AS size FROM deliverable_items q
        WHERE q.route = part.route
          -- Of a worker that is outdated: visible since then, and the session free.
          AND q.visible_at <= coalesce(part.until, 'infinity')
          AND (part.until IS NULL OR q.enqueued_at <= part.until AND (
              SELECT s.locked_until BETWEEN part.until AND clock()
              FROM sessions s WHERE s.session_id = q.session_id) IS NOT TRUE)
          AND (part.kind = 1 OR q.unknown_since IS NULL
               OR q.name = ANY (%(names)s) AND (q.needs IS NULL OR q.needs = ANY (%(names)s))
               OR q.unknown_since <= clock() - %(unknown_after)s * interval '1 s')
          AND CASE part.kind
              WHEN 1 THEN (SELECT keeps_session(s, %(worker)s, %(incarnation)s) FROM sessions s WHERE s.session_id = q.session_id)
              WHEN 3 THEN true
              ELSE (SELECT h.worker_id <> %(worker)s OR h.incarnation <> %(incarnation)s
                        OR EXISTS (SELECT FROM planned_moves m WHERE m.session_id = h.session_id)
                    FROM held_sessions h WHERE h.session_id = q.session_id) IS NOT TRUE
              END
        ORDER BY q.visible_at LIMIT %(limit)s + 1
    ) q
    WHERE part.is_wanted
), room AS MATERIALIZED (
    SELECT CASE WHEN EXISTS (SELECT FROM found WHERE kind IN (2, 4)) THEN %(max_sessions)s - (
        SELECT count(*) FROM sessions s
        WHERE s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s AND s.locked_until > clock()) END AS n
), share AS MATERIALIZED (
    -- The share of one fetch: see limits.fair_share. Counted only where there may be more than a share.
    SELECT w.free, w.unheld, greatest(%(least)s, ceil(w.free::float8 / (%(rounds)s * w.n))::bigint) AS most_free,
        greatest(%(least)s, ceil(w.unheld::float8 / (%(rounds)s * w.n))::bigint) AS most_unheld
    FROM (
        SELECT f.n, CASE WHEN f.n > 1 AND %(limit)s > %(least)s
                         AND (SELECT count(*) FROM found WHERE kind = 3) > %(least)s THEN (
                SELECT count(*)
                FROM (SELECT FROM deliverable_items q
-- [plain
                      WHERE q.route = 'free'
-- plain]
-- [tagged
                      WHERE q.route = ANY (%(free)s::text[])
-- tagged]
                        AND (q.unknown_since IS NULL
                             OR q.name = ANY (%(names)s) AND (q.needs IS NULL OR q.needs = ANY (%(names)s))
                             OR q.unknown_since <= clock() - %(unknown_after)s * interval '1 s')
                      LIMIT least(%(count)s, %(rounds)s * f.n * %(limit)s)) q) END AS free,
            CASE WHEN f.n > 1 AND %(limit)s > %(least)s AND (SELECT n FROM room) > 0 THEN (
                SELECT count(*)
                FROM (SELECT FROM worker_queue q
-- [plain
                      WHERE q.route = 'new'
-- plain]
-- [tagged
                      WHERE q.route = ANY (%(new)s::text[])
-- tagged]
                        AND q.visible_at <= (SELECT clock())
                      LIMIT least(%(count)s, %(rounds)s * f.n * %(limit)s)) q) END AS unheld
        FROM fleet f OFFSET 0
    ) w
), ranked AS MATERIALIZED (
    -- `place`: among the items of the kind. `sessions`: how many must be claimed for it and all older ones.
    SELECT kind,
-- [tagged
        route,
-- tagged]
        visible_at, size, row_number() OVER (PARTITION BY kind ORDER BY visible_at) AS place,
        -- Row by row: items of the same moment are no peers, all of whose sessions would have to find room.
        count(*) FILTER (WHERE is_first) OVER (
            PARTITION BY kind IN (2, 4) ORDER BY visible_at, kind, session_id, is_first DESC ROWS UNBOUNDED PRECEDING
        ) AS sessions
    FROM (
        SELECT kind,
-- [tagged
            route,
-- tagged]
            visible_at, size, session_id,
            row_number() OVER (PARTITION BY kind IN (2, 4), session_id ORDER BY visible_at, kind) = 1 AS is_first
        FROM found
    ) f
-- [plain
), chosen AS MATERIALIZED (
    -- The oldest of all kinds; of the same age, first the items that only the caller may take.
    SELECT count(*) FILTER (WHERE kind = 1 AND fits) AS own, count(*) FILTER (WHERE kind = 2 AND fits) AS offered,
        count(*) FILTER (WHERE kind = 3 AND fits) AS free, count(*) FILTER (WHERE kind = 4 AND fits) AS unheld,
        min(visible_at) FILTER (WHERE kind = 1) AS own_since, min(visible_at) FILTER (WHERE kind = 3) AS free_since,
        count(*) FILTER (WHERE NOT fits) > 0 AS cut
    FROM (
        SELECT r.kind, r.visible_at,
-- plain]
-- [tagged
), oldest AS MATERIALIZED (
        SELECT r.kind, r.route, r.visible_at,
-- tagged]
            sum(r.size) OVER (ORDER BY r.visible_at, r.kind ROWS UNBOUNDED PRECEDING) - r.size < %(max_bytes)s AS fits
        FROM ranked r CROSS JOIN share s
        WHERE (r.kind IN (1, 3) OR r.sessions <= (SELECT n FROM room))
          AND (r.kind <> 3 OR s.free IS NULL OR r.place <= s.most_free)
          AND (r.kind <> 4 OR s.unheld IS NULL OR r.place <= s.most_unheld)
        ORDER BY r.visible_at, r.kind LIMIT %(limit)s
-- [plain
    ) oldest
-- plain]
-- [tagged
), chosen AS MATERIALIZED (
    -- The oldest of all kinds; of the items of unheld sessions, how many of each route.
    SELECT count(*) FILTER (WHERE kind = 1 AND fits) AS own, count(*) FILTER (WHERE kind = 2 AND fits) AS offered,
        count(*) FILTER (WHERE kind = 3 AND fits) AS free,
        ARRAY (SELECT count(*) FILTER (WHERE o.fits)
               FROM unnest(%(new)s::text[]) WITH ORDINALITY AS r (name, place) LEFT JOIN oldest o ON o.route = r.name
               GROUP BY r.place ORDER BY r.place) AS unheld,
        count(*) FILTER (WHERE NOT fits) > 0 AS cut
    FROM oldest
-- tagged]
), locked AS MATERIALIZED (
    SELECT q.*
-- [plain
    FROM chosen c
    CROSS JOIN LATERAL (VALUES
        (1, %(route)s, c.own_since, c.own), (3, 'free', c.free_since, c.free)
    ) AS part (kind, route, since, most)
-- plain]
-- [tagged
    FROM (
        SELECT kind, route, min(visible_at) AS since, count(*) FILTER (WHERE fits) AS most
        FROM oldest WHERE kind IN (1, 3) GROUP BY kind, route
    ) part
-- tagged]
    CROSS JOIN LATERAL (
        SELECT q.instance_id, q.execution_id, q.activity_id, q.session_id, q.unknown_since, q.visible_at, q.attempts,
            octet_length(q.payload) AS size
        FROM deliverable_items q
        WHERE q.route = part.route AND q.visible_at >= part.since
          AND CASE part.kind
              WHEN 1 THEN (SELECT keeps_session(s, %(worker)s, %(incarnation)s) FROM sessions s WHERE s.session_id = q.session_id)
              ELSE q.unknown_since IS NULL
                  OR q.name = ANY (%(names)s) AND (q.needs IS NULL OR q.needs = ANY (%(names)s))
                  OR q.unknown_since <= clock() - %(unknown_after)s * interval '1 s'
              END
        ORDER BY q.visible_at LIMIT part.most FOR NO KEY UPDATE OF q SKIP LOCKED
    ) q
-- include lock_sessions
), taken AS (
-- include take
), assigned AS (
    -- Sessions that the caller is to take: moves with a bound, and offers that have work.
    SELECT array_agg(p.session_id) AS sessions
    FROM fleet f CROSS JOIN LATERAL (
        -- First those of which no work runs on the holder: the others cannot be taken, and must not fill the answer.
        (SELECT s.session_id FROM sessions s
         WHERE f.may_claim AND s.next_worker = %(worker)s AND s.next_until > (SELECT clock())
         ORDER BY EXISTS (
             SELECT FROM worker_queue q
             WHERE q.session_id = s.session_id AND q.lock_incarnation = s.incarnation AND q.locked_until > clock())
         LIMIT %(most_assigned)s)
        UNION
        (SELECT q.session_id FROM worker_queue q
         WHERE f.may_claim AND q.route = %(offer)s AND q.visible_at <= (SELECT clock())
           AND (SELECT s.next_worker = %(worker)s AND s.next_until IS NULL
                FROM sessions s WHERE s.session_id = q.session_id)
         ORDER BY q.visible_at LIMIT %(most_assigned)s)
    ) p
), idle AS (
    -- Read only when nothing was found: when the next item is visible.
    SELECT extract(epoch FROM least(
        (SELECT q.visible_at FROM worker_queue q WHERE q.route = %(route)s AND q.visible_at > (SELECT clock())
         ORDER BY q.visible_at LIMIT 1),
-- [plain
        (SELECT q.visible_at FROM worker_queue q WHERE q.route = 'free' AND q.visible_at > (SELECT clock())
         ORDER BY q.visible_at LIMIT 1),
        (SELECT q.visible_at FROM worker_queue q WHERE q.route = 'new' AND q.visible_at > (SELECT clock())
           AND %(max_sessions)s > 0
         ORDER BY q.visible_at LIMIT 1)
-- plain]
-- [tagged
        (SELECT min((SELECT q.visible_at FROM worker_queue q WHERE q.route = r.name AND q.visible_at > (SELECT clock())
                     ORDER BY q.visible_at LIMIT 1))
         FROM unnest(%(free)s::text[] || CASE WHEN %(max_sessions)s > 0 THEN %(new)s::text[] ELSE '{}' END) AS r (name))
-- tagged]
    ) - clock())::float8 AS next_due
)
SELECT c.offered, c.unheld, c.own + c.free > 0 AND NOT EXISTS (SELECT FROM picked) AS raced, i.next_due,
    s.free > s.most_free AND s.most_free < %(limit)s OR s.unheld > s.most_unheld AND s.most_unheld < %(limit)s AS left,
    c.cut, (SELECT max(total) FROM picked) AS size,
    (SELECT count(*) FROM ranked WHERE kind IN (1, 3) OR sessions <= (SELECT n FROM room)) > %(limit)s AS more,
    (SELECT n FROM room) <= 0 AS crowded, (SELECT n FROM fleet) AS workers,
    (SELECT draining FROM fleet) AS draining, (SELECT sessions FROM assigned) AS assigned,
    (SELECT outdated FROM fleet) AS outdated, t.*
FROM chosen c CROSS JOIN share s
LEFT JOIN idle i ON NOT EXISTS (SELECT FROM picked)
LEFT JOIN taken t ON true
ORDER BY t.n

-- own_items: of sessions that the caller keeps
FROM deliverable_items q
WHERE q.route = %(route)s
  AND EXISTS (SELECT FROM alive_workers WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s)
  AND (SELECT keeps_session(s, %(worker)s, %(incarnation)s) FROM sessions s WHERE s.session_id = q.session_id)

-- fetch_own: the oldest items of sessions that the caller holds
-- Kind 1 of `fetch`. Nearly always there is one item, so it locks without a first read; one more than the limit, to see
-- whether more waits.
WITH locked AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id, q.session_id, q.unknown_since, q.visible_at, q.attempts,
        octet_length(q.payload) AS size
    -- include own_items
    ORDER BY q.visible_at LIMIT %(limit)s + 1 FOR NO KEY UPDATE OF q SKIP LOCKED
-- include lock_sessions
), taken AS (
-- include take
)
SELECT
    -- Read only when nothing was taken: what others had locked.
    NOT EXISTS (SELECT FROM picked) AND EXISTS (
        SELECT
        -- include own_items
    ) AS raced,
    (SELECT count(*) FROM locked) AS waiting,
    -- columns of guests
    t.*
FROM (SELECT) one
LEFT JOIN taken t ON true
-- tables of guests
ORDER BY t.n

-- claim_alone: wait for other claims of this worker and for its drain; only then can `claim` count its capacity
SELECT FROM workers WHERE worker_id = %(worker)s FOR NO KEY UPDATE

-- claim: take sessions that no worker holds, with their waiting items; a trigger notifies their watchers
-- Sent together with `claim_alone`.
WITH room AS MATERIALIZED (
    SELECT %(max_sessions)s - count(*) AS n FROM sessions s
    WHERE s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s AND s.locked_until > clock()
), seen AS MATERIALIZED (
    -- Only as many as were chosen are locked: other workers take the rest at the same time.
    SELECT q.*, sum(q.size) OVER (ROWS UNBOUNDED PRECEDING) AS total
-- [plain
    FROM (VALUES
        (%(offer)s, %(offered)s, NULL),
        ('new', %(unheld)s, CASE WHEN %(outdated)s THEN clock() - %(newer_seconds)s * interval '1 s' END)
    ) AS part (route, most, until)
-- plain]
-- [tagged
    FROM (
        VALUES (%(offer)s, %(offered)s, NULL::timestamptz)
        UNION ALL
        SELECT r.*, CASE WHEN %(outdated)s THEN clock() - %(newer_seconds)s * interval '1 s' END
        FROM unnest(%(new)s::text[], %(unheld)s::bigint[]) r
    ) AS part (route, most, until)
-- tagged]
    CROSS JOIN LATERAL (
        SELECT q.instance_id, q.execution_id, q.activity_id, q.session_id, q.unknown_since, q.visible_at, q.route,
-- [tagged
            q.tag,
-- tagged]
            q.attempts, octet_length(q.payload) AS size,
            s.worker_id AS last_worker, s.incarnation AS last_incarnation,
            coalesce(holds_session(s, %(worker)s, %(incarnation)s), false) AS ours
        FROM deliverable_items q LEFT JOIN sessions s ON s.session_id = q.session_id
        WHERE q.route = part.route
          AND EXISTS (
              SELECT FROM alive_workers
              WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND NOT draining)
          AND (q.unknown_since IS NULL OR q.name = ANY (%(names)s) AND (q.needs IS NULL OR q.needs = ANY (%(names)s))
               OR q.unknown_since <= clock() - %(unknown_after)s * interval '1 s')
          AND (SELECT h.worker_id <> %(worker)s OR h.incarnation <> %(incarnation)s
                        OR EXISTS (SELECT FROM planned_moves m WHERE m.session_id = h.session_id)
               FROM held_sessions h WHERE h.session_id = q.session_id) IS NOT TRUE
          AND q.visible_at <= coalesce(part.until, 'infinity') AND (q.enqueued_at > part.until) IS NOT TRUE
          AND (s.locked_until BETWEEN part.until AND clock()) IS NOT TRUE
        ORDER BY q.visible_at LIMIT part.most FOR NO KEY UPDATE OF q SKIP LOCKED
    ) q
), waiting AS MATERIALIZED (
    SELECT * FROM seen WHERE total - size < %(max_bytes)s
), wanted AS MATERIALIZED (
    SELECT session_id, last_worker, last_incarnation
-- [tagged
        , tag
-- tagged]
    FROM (
        SELECT *, row_number() OVER (PARTITION BY ours ORDER BY first) AS place
        FROM (
            SELECT session_id, last_worker, last_incarnation, ours, min(visible_at) AS first
-- [tagged
                , (array_agg(tag ORDER BY visible_at))[1] AS tag
-- tagged]
            FROM waiting GROUP BY session_id, last_worker, last_incarnation, ours
        ) sessions_waiting
    ) ranked
    WHERE ours OR place <= (SELECT n FROM room)
), ended AS MATERIALIZED (
    -- Leases that have ended, locked so that they are not renewed before the commit. One that is locked is skipped.
    SELECT w.worker_id, w.incarnation FROM workers w
    WHERE w.worker_id = ANY (ARRAY (SELECT last_worker FROM wanted)) AND w.locked_until <= clock()
    FOR SHARE SKIP LOCKED
), claimed AS (
    INSERT INTO sessions AS s (session_id, worker_id, incarnation, epoch, locked_until, touched_at
-- [tagged
        , tag
-- tagged]
    )
    SELECT session_id, %(worker)s, %(incarnation)s, nextval('epochs'), clock() + %(session_lock)s * interval '1 s',
        clock()
-- [tagged
        , tag
-- tagged]
    FROM wanted ORDER BY session_id
    ON CONFLICT (session_id) DO UPDATE
    SET worker_id = excluded.worker_id, incarnation = excluded.incarnation,
-- [tagged
        -- A row that no work has made has no tag yet.
        tag = CASE WHEN s.worker_id = '' THEN excluded.tag ELSE s.tag END,
-- tagged]
        -- Issued again: this claim may have waited for another claim, which has a later epoch than the epoch above.
        epoch = CASE WHEN s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s THEN s.epoch
                ELSE nextval('epochs') END,
        -- A hold keeps a session for its holder only.
        locked_until = greatest(
            clock() + %(session_lock)s * interval '1 s',
            CASE WHEN s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s THEN s.locked_until END),
        touched_at = clock(),
        freed_by = NULL, next_worker = NULL, next_until = NULL, next_reason = NULL
    WHERE s.locked_until <= clock()
       OR (s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s)
       OR EXISTS (SELECT FROM ended e WHERE e.worker_id = s.worker_id AND e.incarnation = s.incarnation)
       -- An incarnation that was replaced, or whose row is gone, cannot renew its lease.
       OR NOT EXISTS (SELECT FROM workers w WHERE w.worker_id = s.worker_id AND w.incarnation = s.incarnation)
          AND EXISTS (SELECT FROM wanted l WHERE l.last_incarnation = s.incarnation AND l.last_worker = s.worker_id)
    RETURNING s.session_id, s.epoch
-- [tagged
        , s.tag
-- tagged]
), picked AS MATERIALIZED (
    SELECT w.instance_id, w.execution_id, w.activity_id, w.unknown_since, w.attempts, c.epoch,
-- [tagged
        c.tag,
-- tagged]
        row_number() OVER (ORDER BY w.visible_at) AS n
    FROM waiting w JOIN claimed c USING (session_id)
), others AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id
    FROM worker_queue q
    -- By a list: a join could be planned to begin with all rows of another route.
    WHERE q.session_id = ANY (ARRAY (SELECT session_id FROM claimed)) AND q.route <> %(route)s
      AND (q.instance_id, q.execution_id, q.activity_id) NOT IN (
        SELECT instance_id, execution_id, activity_id FROM waiting)
    LIMIT %(reroute)s FOR NO KEY UPDATE OF q SKIP LOCKED
), rerouted AS (
    UPDATE worker_queue q SET route = %(route)s FROM others o
    WHERE q.instance_id = o.instance_id AND q.execution_id = o.execution_id AND q.activity_id = o.activity_id
), taken AS (
-- include take
)
SELECT (SELECT n FROM room) > 0 AND (SELECT count(*) FROM claimed) <= (SELECT count(*) - 1 FROM wanted)
       OR (SELECT n FROM room) > 0 AND NOT EXISTS (SELECT FROM waiting) AS raced,
    t.*
FROM (SELECT) one LEFT JOIN taken t ON true
ORDER BY t.n
