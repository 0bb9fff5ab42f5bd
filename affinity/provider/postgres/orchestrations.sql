-- fetch: instances with visible messages that the caller owns, or that have no owner and become the caller's
-- Stale routes that it meets are repaired; messages of instances that do not exist are removed.
WITH seen AS MATERIALIZED (
    (SELECT o.id, o.instance_id, o.route, o.visible_at, 0 AS rank FROM orchestrator_queue o
     WHERE o.route = %(route)s AND o.visible_at <= (SELECT clock()) AND o.id NOT IN (SELECT unnest(%(exclude)s))
       AND EXISTS (SELECT FROM alive_workers WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s)
     ORDER BY o.visible_at LIMIT %(scan)s)
    UNION ALL
    (SELECT o.id, o.instance_id, o.route, o.visible_at, 1 FROM orchestrator_queue o
     LEFT JOIN instances i USING (instance_id)
     WHERE o.route = 'new' AND o.visible_at <= (SELECT clock()) AND o.id NOT IN (SELECT unnest(%(exclude)s))
       AND EXISTS (
           SELECT FROM alive_workers
           WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND NOT draining)
       -- Skipped here, not later: instances of unknown code must not fill the window.
       AND (i.unknown_since IS NULL
            OR CASE WHEN i.version IS NULL THEN i.name ELSE i.name || '@' || i.version END = ANY (%(names)s)
            OR i.unknown_since <= clock() - %(unknown_after)s * interval '1 s')
     ORDER BY o.visible_at LIMIT %(scan)s)
), state AS MATERIALIZED (
    SELECT s.instance_id, s.rank, s.first, i.name, i.version, i.unknown_since, i.owner_incarnation,
        i.updated_at, i.status = 'suspended' AS suspended,
        i.instance_id IS NULL OR i.status NOT IN ('pending', 'running', 'suspended') AS gone,
        w.worker_id AS owner,
        coalesce(w.worker_id = %(worker)s AND w.incarnation = %(incarnation)s, false) AS ours,
        coalesce(CASE WHEN i.version IS NULL THEN i.name ELSE i.name || '@' || i.version END = ANY (%(names)s), false)
            AS known
    FROM (SELECT instance_id, min(rank) AS rank, min(visible_at) AS first FROM seen GROUP BY instance_id) s
    LEFT JOIN instances i USING (instance_id)
    LEFT JOIN alive_workers w ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation
), eligible AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY ours ORDER BY rank, first) AS place FROM state
    WHERE NOT gone AND NOT suspended AND (ours OR owner IS NULL
        AND (known OR unknown_since IS NULL
             OR unknown_since <= clock() - %(unknown_after)s * interval '1 s')
        AND EXISTS (
            SELECT FROM alive_workers
            WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND NOT draining))
), share AS MATERIALIZED (
    -- The share of one fetch: see limits.fair_share.
    SELECT waiting.n, workers.n > 1 AS shared,
        CASE WHEN workers.n > 1 THEN greatest(%(least)s, ceil(waiting.n::float8 / (%(rounds)s * workers.n))::bigint)
             ELSE %(limit)s END AS most
    FROM (SELECT count(*) AS n FROM alive_workers WHERE NOT draining) workers,
        (SELECT count(*) AS n FROM eligible WHERE NOT ours) waiting
), chosen AS MATERIALIZED (
    SELECT * FROM eligible WHERE ours OR place <= (SELECT most FROM share)
    ORDER BY rank, first LIMIT %(limit)s
), waiting AS MATERIALIZED (
    -- In rounds, the first message of each instance, then the second: the backlog of one instance delays no other.
    SELECT c.instance_id, c.rank, c.first,
        sum(m.size) OVER (ORDER BY m.round, c.rank, c.first, c.instance_id ROWS UNBOUNDED PRECEDING) - m.size AS before
    FROM chosen c CROSS JOIN LATERAL (
        SELECT size, row_number() OVER (ORDER BY visible_at, id) AS round
        FROM (
            SELECT o.id, o.visible_at, octet_length(o.payload) AS size FROM orchestrator_queue o
            WHERE o.instance_id = c.instance_id AND o.visible_at <= (SELECT clock())
              AND o.id NOT IN (SELECT unnest(%(exclude)s))
            ORDER BY o.visible_at, o.id LIMIT %(messages)s
        ) visible
    ) m
), fitting AS MATERIALIZED (
    SELECT instance_id, rank, first, count(*) AS messages FROM waiting WHERE before < %(max_bytes)s
    GROUP BY instance_id, rank, first
), free AS MATERIALIZED (
    -- Unchanged since the messages were read: an owner that has come back may have consumed them.
    SELECT i.instance_id FROM chosen c JOIN instances i USING (instance_id)
    WHERE NOT c.ours AND c.instance_id IN (SELECT instance_id FROM fitting) AND i.updated_at = c.updated_at AND i.owner_incarnation IS NOT DISTINCT FROM c.owner_incarnation
      AND i.status IN ('pending', 'running') AND NOT EXISTS (
          SELECT FROM alive_workers w WHERE w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation)
    ORDER BY i.instance_id FOR NO KEY UPDATE OF i SKIP LOCKED
), taken AS (
    UPDATE instances i
    SET owner_worker = %(worker)s, owner_incarnation = %(incarnation)s, claims = i.claims + 1,
        unknown_since = CASE WHEN c.known THEN NULL ELSE i.unknown_since END
    FROM chosen c JOIN free USING (instance_id) WHERE i.instance_id = c.instance_id
    RETURNING i.instance_id, i.generation, i.execution_id, i.name, i.version, i.event_count, i.claims,
        extract(epoch FROM clock() - c.unknown_since)::float8 AS unknown_for, i.session_id, i.value_bytes
), got AS MATERIALIZED (
    SELECT t.*, f.rank, f.first, f.messages FROM taken t JOIN fitting f USING (instance_id)
    UNION ALL
    SELECT i.instance_id, i.generation, i.execution_id, i.name, i.version, i.event_count, i.claims,
        extract(epoch FROM clock() - i.unknown_since)::float8, i.session_id, i.value_bytes, f.rank, f.first, f.messages
    FROM chosen c JOIN fitting f USING (instance_id) JOIN instances i USING (instance_id) WHERE c.ours
), misplaced AS MATERIALIZED (
    SELECT o.id, a.route
    FROM (
        SELECT instance_id, %(route)s AS route FROM got
        UNION ALL
        SELECT instance_id, 'w:' || owner FROM state WHERE NOT gone AND NOT ours AND owner IS NOT NULL
        UNION ALL
        SELECT instance_id, 'suspended' FROM state WHERE suspended
    ) a JOIN orchestrator_queue o USING (instance_id)
    WHERE o.route <> a.route
    LIMIT %(reroute)s FOR NO KEY UPDATE OF o SKIP LOCKED
), rerouted AS (
    UPDATE orchestrator_queue o SET route = m.route FROM misplaced m WHERE o.id = m.id
), orphans AS MATERIALIZED (
    SELECT o.id FROM state s JOIN orchestrator_queue o USING (instance_id) WHERE s.gone
    LIMIT %(reroute)s FOR UPDATE OF o SKIP LOCKED
), removed AS (
    DELETE FROM orchestrator_queue o USING orphans x WHERE o.id = x.id
)
SELECT r.more, r.next_due, (SELECT shared AND n > most FROM share) AS left, r.fenced, g.instance_id, g.generation,
    g.execution_id, g.name, g.version, g.event_count, g.claims, g.unknown_for, g.session_id, g.value_bytes, m.id, m.payload
FROM (
    SELECT (SELECT count(*) FROM chosen) > (SELECT count(*) FROM got) -- lost to others, or to the bounds below
        OR (SELECT count(*) FROM chosen) >= %(limit)s OR (SELECT count(*) FROM seen) >= %(scan)s
        OR EXISTS (SELECT FROM got WHERE messages >= %(messages)s)
        OR EXISTS (SELECT FROM waiting WHERE before >= %(max_bytes)s) AS more,
    extract(epoch FROM least(
        (SELECT o.visible_at FROM orchestrator_queue o WHERE o.route = %(route)s AND o.visible_at > (SELECT clock())
         ORDER BY o.visible_at LIMIT 1),
        (SELECT o.visible_at FROM orchestrator_queue o WHERE o.route = 'new' AND o.visible_at > (SELECT clock())
         ORDER BY o.visible_at LIMIT 1)
    ) - clock())::float8 AS next_due,
    EXISTS (SELECT FROM workers WHERE worker_id = %(worker)s AND incarnation <> %(incarnation)s) AS fenced
) r
LEFT JOIN (
    got g CROSS JOIN LATERAL (
        SELECT o.id, o.payload, o.visible_at FROM orchestrator_queue o
        WHERE o.instance_id = g.instance_id AND o.visible_at <= (SELECT clock())
          AND o.id NOT IN (SELECT unnest(%(exclude)s))
        ORDER BY o.visible_at, o.id LIMIT g.messages
    ) m
) ON true
ORDER BY g.rank, g.first, g.instance_id, m.visible_at, m.id

-- read_history: the next events of some executions, in order, as many as fit into the limits
SELECT n, event, total
FROM (
    SELECT k.n, h.event_id, h.event, h.size,
        sum(h.size) OVER (ORDER BY k.n, h.event_id ROWS UNBOUNDED PRECEDING) AS total
    FROM unnest(%(instance)s, %(execution)s, %(after)s)
         WITH ORDINALITY AS k (instance_id, execution_id, after, n)
    CROSS JOIN LATERAL (
        SELECT h.event_id, h.event, octet_length(h.event) AS size FROM history h
        WHERE h.instance_id = k.instance_id AND h.execution_id = k.execution_id AND h.event_id > k.after
        ORDER BY h.event_id LIMIT %(page)s
    ) h
) events
WHERE total - size < %(max_bytes)s
ORDER BY n, event_id

-- release: release instances, or hand them over, and route their messages accordingly
WITH ours AS MATERIALIZED (
    SELECT r.unknown, i.instance_id, r.receiver
    FROM unnest(%(instance)s, %(receiver)s, %(unknown)s) AS r (instance_id, receiver, unknown)
    JOIN instances i USING (instance_id)
    WHERE i.owner_worker = %(worker)s AND i.owner_incarnation = %(incarnation)s
      AND EXISTS (SELECT FROM alive_workers WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s)
    ORDER BY i.instance_id FOR NO KEY UPDATE OF i
), given AS MATERIALIZED (
    SELECT o.instance_id, o.unknown, w.worker_id, w.incarnation, coalesce('w:' || w.worker_id, 'new') AS route
    FROM ours o LEFT JOIN alive_workers w ON w.worker_id = o.receiver AND NOT w.draining
), released AS (
    UPDATE instances i
    SET owner_worker = coalesce(g.worker_id, i.owner_worker), owner_incarnation = g.incarnation,
        claims = greatest(0, i.claims - 1), -- a claim that was given back does not count
        unknown_since = CASE WHEN g.unknown THEN coalesce(i.unknown_since, clock()) ELSE i.unknown_since END
    FROM given g WHERE i.instance_id = g.instance_id
), misplaced AS MATERIALIZED (
    SELECT o.id, g.route FROM given g JOIN orchestrator_queue o USING (instance_id) WHERE o.route <> g.route
    LIMIT %(reroute)s FOR NO KEY UPDATE OF o SKIP LOCKED
)
UPDATE orchestrator_queue o SET route = m.route FROM misplaced m WHERE o.id = m.id
