-- moves: between two epochs
-- Parts: the conditions that are asked for.
SELECT m.session_id, m.from_worker, m.to_worker, m.epoch, m.reason, m.moved_at, m.queued, m.hydrate_seconds,
    m.hydrate_bytes, m.gap_seconds, m.resource_seconds::text
FROM session_moves m
WHERE m.epoch > %(after)s AND m.epoch < %(before)s
-- [session
  AND m.session_id = %(session)s
-- session]
-- [reason
  AND m.reason = %(reason)s
-- reason]

-- list: a page of moves, the last ones before an epoch, or (ASC) the first ones after one
-- Parts: as `moves`. Moves of a worker are read along two indexes.
(
-- include moves
-- [worker
  AND m.to_worker = %(worker)s
-- worker]
ORDER BY m.epoch DESC LIMIT %(limit)s)
-- [worker
UNION ALL
(
-- include moves
  AND m.from_worker = %(worker)s AND m.to_worker <> %(worker)s
ORDER BY m.epoch DESC LIMIT %(limit)s)
-- worker]

-- uses: of one session, by holds, work, work at limits, and watches
(
SELECT 'hold', h.instance_id, NULL, NULL, NULL::float8, h.until FROM session_holds h
WHERE h.session_id = %(session)s AND h.until > clock() ORDER BY h.until, h.instance_id LIMIT %(limit)s)
UNION ALL
(
SELECT 'work', q.instance_id, q.name, w.worker_id,
    extract(epoch FROM clock()
        - CASE WHEN w.worker_id IS NULL THEN q.enqueued_at ELSE coalesce(q.locked_at, q.enqueued_at) END)::float8, NULL
FROM (
    SELECT * FROM worker_queue WHERE session_id = %(session)s
    UNION ALL
    SELECT * FROM worker_queue WHERE order_session = %(session)s AND session_id IS NULL AND route NOT IN ('gate', 'gated')
) q
LEFT JOIN alive_workers w
    ON w.worker_id = q.lock_worker AND w.incarnation = q.lock_incarnation AND q.locked_until > clock()
ORDER BY w.worker_id IS NULL, q.enqueued_at, q.instance_id, q.activity_id LIMIT %(limit)s)
UNION ALL
(
SELECT 'limited', q.instance_id, q.name, NULL, extract(epoch FROM clock() - q.enqueued_at)::float8, NULL FROM worker_queue q
WHERE q.gate_session = %(session)s AND q.route IN ('gate', 'gated')
ORDER BY q.enqueued_at, q.instance_id, q.activity_id LIMIT %(limit)s)
UNION ALL
(
SELECT 'watch', s.instance_id, NULL, NULL, NULL, NULL FROM session_watches s
WHERE s.session_id = %(session)s ORDER BY s.instance_id LIMIT %(limit)s)

-- report: what hydrates have cost, and why the sessions had moved
WITH report AS MATERIALIZED (
    SELECT m.epoch, m.reason, r.n, r.seconds, r.bytes, r.resources::jsonb AS resources
    FROM unnest(%(epoch)s, %(seconds)s, %(bytes)s, %(resources)s) WITH ORDINALITY
        AS r (epoch, seconds, bytes, resources, n)
    JOIN session_moves m USING (epoch)
), locked AS MATERIALIZED (
    SELECT m.epoch FROM session_moves m
    WHERE m.epoch = ANY (ARRAY (SELECT epoch FROM report WHERE resources IS NOT NULL))
        OR (m.epoch = ANY (ARRAY (SELECT epoch FROM report WHERE seconds IS NOT NULL)) AND m.hydrate_seconds IS NULL)
    ORDER BY m.epoch FOR NO KEY UPDATE
), updated AS (
    UPDATE session_moves m SET
        hydrate_bytes = CASE WHEN m.hydrate_seconds IS NULL THEN r.bytes ELSE m.hydrate_bytes END,
        hydrate_seconds = coalesce(m.hydrate_seconds, r.seconds),
        resource_seconds = coalesce(l.resources, '{}') || m.resource_seconds
    FROM (SELECT DISTINCT epoch FROM report) e
    LEFT JOIN (
        SELECT DISTINCT ON (epoch) epoch, seconds, bytes FROM report WHERE seconds IS NOT NULL ORDER BY epoch, n
    ) r USING (epoch)
    LEFT JOIN (
        SELECT epoch, jsonb_object_agg(key, value ORDER BY n DESC) AS resources
        FROM report CROSS JOIN jsonb_each(resources) GROUP BY epoch
    ) l USING (epoch)
    WHERE m.epoch = e.epoch AND m.epoch IN (SELECT epoch FROM locked)
)
SELECT n, reason FROM report
