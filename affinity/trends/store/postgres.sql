-- begin: whether it is time to count; the caller has it until the next time
INSERT INTO trend_rounds AS r (part, counted_to, due_at)
VALUES (1, to_timestamp(0), (SELECT clock()) + %(pause)s * interval '1 s')
ON CONFLICT (part) DO UPDATE SET due_at = excluded.due_at WHERE r.due_at <= (SELECT clock())
RETURNING counted_to

-- due: seconds until the next count
SELECT extract(epoch FROM r.due_at - clock())::float8 FROM trend_rounds r

-- count: a step, unless another has done it; returns whether there is more
-- Nothing is joined before the step is bounded: the planner does not know how short it is.
WITH RECURSIVE mine AS MATERIALIZED (
    -- A clock that was set back is followed, and what it has passed before is not counted again.
    SELECT CASE WHEN r.counted_to > clock() THEN clock() ELSE
               greatest(r.counted_to, clock() - %(keep)s * interval '1 s') END AS since,
           clock() - %(lag)s * interval '1 s' AS latest
    FROM trend_rounds r WHERE r.counted_to = %(counted_to)s FOR NO KEY UPDATE
), step AS MATERIALIZED (
    SELECT m.since, m.latest, greatest(m.since, least(m.latest, greatest(m.since + interval '1 microsecond', coalesce(least(
        (SELECT i.created_at FROM instances i WHERE i.created_at >= m.since ORDER BY i.created_at OFFSET %(rows)s LIMIT 1),
        (SELECT e.ended_at FROM ended_executions e WHERE e.is_last AND e.ended_at >= m.since
         ORDER BY e.ended_at OFFSET %(rows)s LIMIT 1),
        (SELECT f.failed_at FROM failures f WHERE f.failed_at >= m.since
         ORDER BY f.failed_at OFFSET %(rows)s LIMIT 1)), 'infinity')))) AS until
    FROM mine m
), begun AS MATERIALIZED (
    SELECT i.name, i.created_at FROM step s CROSS JOIN LATERAL (
        SELECT * FROM instances i WHERE i.created_at >= s.since AND i.created_at < s.until ORDER BY i.created_at OFFSET 0) i
), ended AS MATERIALIZED (
    SELECT i.name, e.ended_at, i.status::text AS status, e.ended_at - coalesce(i.starts_at, i.created_at) AS duration
    FROM step s CROSS JOIN LATERAL (
        SELECT * FROM ended_executions e WHERE e.is_last AND e.ended_at >= s.since AND e.ended_at < s.until
        ORDER BY e.ended_at OFFSET 0
    ) e CROSS JOIN LATERAL (
        SELECT * FROM instances i WHERE i.instance_id = e.instance_id AND i.execution_id = e.execution_id
          AND i.status IN ('completed', 'failed', 'cancelled') OFFSET 0) i
), attempt AS MATERIALIZED (
    SELECT f.name, f.failed_at, i.name AS orchestration FROM step s CROSS JOIN LATERAL (
        SELECT * FROM failures f WHERE f.failed_at >= s.since AND f.failed_at < s.until AND f.is_retried
        ORDER BY f.failed_at OFFSET 0
    ) f LEFT JOIN LATERAL (SELECT i.name FROM instances i WHERE i.instance_id = f.instance_id OFFSET 0) i ON true
), event (kind, name, minute, what, bucket) AS MATERIALIZED (
    SELECT 'orchestration', name, floor(extract(epoch FROM created_at) / 60)::integer, 'started', NULL::integer FROM begun
    UNION ALL
    -- See `bucket_of` in affinity/trends/durations.py.
    SELECT 'orchestration', name, floor(extract(epoch FROM ended_at) / 60)::integer, status,
        least(127, greatest(0, ceil(4 * ln(greatest(extract(epoch FROM duration)::float8, 0.001) / 0.001) / ln(2.0::float8))))::integer
    FROM ended
    UNION ALL
    SELECT 'activity', name, floor(extract(epoch FROM failed_at) / 60)::integer, 'retried', NULL FROM attempt
    UNION ALL
    SELECT 'orchestration', orchestration, floor(extract(epoch FROM failed_at) / 60)::integer, 'retried', NULL FROM attempt
    WHERE orchestration IS NOT NULL
), counted AS MATERIALIZED (
    SELECT e.kind, n.name, e.minute, count(*) FILTER (WHERE e.what = 'started') AS started,
        count(*) FILTER (WHERE e.what = 'completed') AS completed, count(*) FILTER (WHERE e.what = 'failed') AS failed,
        count(*) FILTER (WHERE e.what = 'cancelled') AS cancelled, count(*) FILTER (WHERE e.what = 'retried') AS retries
    FROM event e CROSS JOIN LATERAL (VALUES (e.name), ('')) AS n (name)
    GROUP BY e.kind, n.name, e.minute
), lasted AS MATERIALIZED (
    SELECT b.kind, b.name, b.minute, jsonb_object_agg(b.bucket, b.number) AS durations FROM (
        SELECT e.kind, n.name, e.minute, e.bucket, count(*) AS number
        FROM event e CROSS JOIN LATERAL (VALUES (e.name), ('')) AS n (name)
        WHERE e.bucket IS NOT NULL GROUP BY e.kind, n.name, e.minute, e.bucket) b
    GROUP BY b.kind, b.name, b.minute
), item_route (name) AS (
    (SELECT route FROM worker_queue ORDER BY route LIMIT 1)
    UNION ALL
    SELECT (SELECT q.route FROM worker_queue q WHERE q.route > r.name ORDER BY q.route LIMIT 1)
    FROM item_route r WHERE r.name IS NOT NULL
), message_route (name) AS (
    (SELECT route FROM orchestrator_queue ORDER BY route LIMIT 1)
    UNION ALL
    SELECT (SELECT q.route FROM orchestrator_queue q WHERE q.route > r.name ORDER BY q.route LIMIT 1)
    FROM message_route r WHERE r.name IS NOT NULL
), item AS MATERIALIZED (
    SELECT q.name, q.instance_id, clock() - q.visible_at AS age
    FROM item_route r CROSS JOIN LATERAL (
        -- Work with a priority is visible since before it was queued.
        SELECT d.name, d.instance_id, greatest(d.visible_at, d.enqueued_at) AS visible_at FROM deliverable_items d
        WHERE d.route = r.name ORDER BY d.visible_at LIMIT %(waiting)s
    ) q
    WHERE r.name NOT IN ('blocked', 'gate', 'gated') LIMIT %(most_waiting)s
), message AS MATERIALIZED (
    SELECT q.instance_id, clock() - q.visible_at AS age
    FROM message_route r CROSS JOIN LATERAL (
        -- Messages that a reset put before all others have no time.
        SELECT o.instance_id, o.visible_at FROM orchestrator_queue o
        WHERE o.route = r.name AND o.visible_at <= (SELECT clock()) AND o.visible_at > to_timestamp(0)
        ORDER BY o.visible_at LIMIT %(waiting)s
    ) q
    WHERE r.name NOT IN ('suspended', 'gate', 'gated') LIMIT %(most_waiting)s
), waiting (kind, name, age) AS (
    SELECT 'activity', name, age FROM item
    UNION ALL
    SELECT 'orchestration', i.name, q.age
    FROM (SELECT instance_id, age FROM item UNION ALL SELECT instance_id, age FROM message) q
    CROSS JOIN LATERAL (SELECT i.name FROM instances i WHERE i.instance_id = q.instance_id OFFSET 0) i
    UNION ALL
    SELECT 'orchestration', '', interval '0' -- the queues were looked at
), aged AS MATERIALIZED (
    SELECT w.kind, n.name, floor(extract(epoch FROM (SELECT clock())) / 60)::integer AS minute,
        max(extract(epoch FROM w.age))::float8 AS queue_age
    FROM waiting w CROSS JOIN LATERAL (VALUES (w.name), ('')) AS n (name)
    WHERE EXISTS (SELECT FROM step)
    GROUP BY w.kind, n.name
), written AS (
    INSERT INTO trends AS t (kind, name, minute, started, completed, failed, cancelled, retries, queue_age, durations)
    SELECT kind, name, minute, coalesce(c.started, 0), coalesce(c.completed, 0), coalesce(c.failed, 0),
        coalesce(c.cancelled, 0), coalesce(c.retries, 0), a.queue_age, coalesce(l.durations, '{}')
    FROM (SELECT kind, name, minute FROM counted UNION SELECT kind, name, minute FROM aged) k
    LEFT JOIN counted c USING (kind, name, minute)
    LEFT JOIN lasted l USING (kind, name, minute)
    LEFT JOIN aged a USING (kind, name, minute)
    ON CONFLICT (kind, name, minute) DO UPDATE SET
        started = t.started + excluded.started, completed = t.completed + excluded.completed,
        failed = t.failed + excluded.failed, cancelled = t.cancelled + excluded.cancelled,
        retries = t.retries + excluded.retries, queue_age = greatest(t.queue_age, excluded.queue_age),
        durations = CASE WHEN excluded.durations = '{}' THEN t.durations
                         ELSE add_durations(t.durations, excluded.durations) END
), moved AS (
    UPDATE trend_rounds r SET counted_to = s.until, due_at = CASE WHEN s.until < s.latest THEN clock() ELSE r.due_at END
    FROM step s
)
SELECT s.until < s.latest FROM step s

-- read: the minutes of a name
SELECT minute, started, completed, failed, cancelled, retries, queue_age, durations::text FROM trends
WHERE kind = %(kind)s AND name = %(name)s AND minute > %(since)s ORDER BY minute

-- counted_to: with the time, and the minute
SELECT c.now, (SELECT r.counted_to FROM trend_rounds r WHERE r.counted_to > to_timestamp(0)),
    floor(extract(epoch FROM c.now) / 60)::integer
FROM (SELECT clock() AS now OFFSET 0) c

-- sum: by name; those with failures and retries first
WITH recent AS MATERIALIZED (
    SELECT * FROM trends
    WHERE minute > (SELECT floor(extract(epoch FROM clock()) / 60)::integer - %(minutes)s) AND name <> ''
), total AS MATERIALIZED (
    SELECT t.kind, t.name, sum(t.started)::bigint AS started, sum(t.completed)::bigint AS completed, sum(t.failed)::bigint AS failed,
        sum(t.cancelled)::bigint AS cancelled, sum(t.retries)::bigint AS retries, max(t.queue_age) AS queue_age
    FROM recent t GROUP BY t.kind, t.name
    ORDER BY sum(t.failed + t.retries) DESC, sum(t.started) DESC, t.kind, t.name LIMIT %(limit)s
)
SELECT t.kind, t.name, t.started, t.completed, t.failed, t.cancelled, t.retries, t.queue_age, (
    SELECT coalesce(jsonb_object_agg(d.key, d.number), '{}')::text FROM (
        SELECT b.key, sum(b.value::bigint) AS number FROM recent r CROSS JOIN LATERAL jsonb_each_text(r.durations) b
        WHERE r.kind = t.kind AND r.name = t.name GROUP BY b.key) d)
FROM total t
ORDER BY t.failed + t.retries DESC, t.started DESC, t.kind, t.name

-- remove: old minutes, up to a number
WITH removed AS (
    DELETE FROM trends t WHERE t.ctid = ANY (ARRAY (
        SELECT o.ctid FROM trends o WHERE o.minute < floor(extract(epoch FROM (SELECT clock()) - %(older_than)s * interval '1 s') / 60)
        ORDER BY o.minute LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM removed
