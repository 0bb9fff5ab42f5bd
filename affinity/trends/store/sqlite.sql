-- round: up to when all is counted, and when the next count is due
SELECT counted_to, due_at FROM trend_rounds;

-- set_round: after a step
INSERT INTO trend_rounds (part, counted_to, due_at) VALUES (1, :counted_to, :due_at)
ON CONFLICT (part) DO UPDATE SET counted_to = excluded.counted_to, due_at = excluded.due_at;

-- bound: the time of the first row that is too many for one step
SELECT min(at) FROM (
    SELECT (SELECT created_at FROM instances WHERE created_at >= :since ORDER BY created_at LIMIT 1 OFFSET :rows) AS at
    UNION ALL
    SELECT (SELECT ended_at FROM ended_executions WHERE is_last AND ended_at >= :since ORDER BY ended_at LIMIT 1 OFFSET :rows)
    UNION ALL
    SELECT (SELECT failed_at FROM failures WHERE failed_at >= :since ORDER BY failed_at LIMIT 1 OFFSET :rows)
);

-- begun: instances that were started, by name and minute
SELECT name, CAST(created_at / 60 AS INTEGER), count(*) FROM instances
WHERE created_at >= :since AND created_at < :until GROUP BY 1, 2;

-- ended: instances that ended, with the seconds since their start
SELECT i.name, CAST(e.ended_at / 60 AS INTEGER), i.status, e.ended_at - coalesce(i.starts_at, i.created_at)
FROM ended_executions AS e CROSS JOIN instances AS i ON i.instance_id = e.instance_id AND i.execution_id = e.execution_id
WHERE e.is_last AND e.ended_at >= :since AND e.ended_at < :until AND i.status IN ('completed', 'failed', 'cancelled');

-- attempts: that failed, by activity, orchestration and minute
SELECT f.name, (SELECT name FROM instances WHERE instance_id = f.instance_id), CAST(f.failed_at / 60 AS INTEGER), count(*)
FROM failures AS f WHERE f.failed_at >= :since AND f.failed_at < :until AND f.is_retried GROUP BY 1, 2, 3;

-- item_routes: of the queue, found one by one in the index
WITH RECURSIVE routes (route) AS (
    SELECT min(route) FROM worker_queue
    UNION ALL
    SELECT (SELECT min(route) FROM worker_queue WHERE route > routes.route) FROM routes WHERE routes.route IS NOT NULL
)
SELECT route FROM routes WHERE route IS NOT NULL;

-- items: of a route, those that wait longest, with the names of activity and orchestration
-- Work with a priority is visible since before it was queued.
SELECT q.name, i.name, :now - max(q.visible_at, q.enqueued_at) FROM (
    SELECT name, instance_id, visible_at, enqueued_at FROM worker_queue
    WHERE route = :route AND visible_at <= :now AND (lock_token IS NULL OR limited IS NOT 1 AND (locked_until <= :now
          OR lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now)))
    ORDER BY visible_at LIMIT :limit
) AS q LEFT JOIN instances AS i USING (instance_id);

-- message_routes: of the queue, found one by one in the index
WITH RECURSIVE routes (route) AS (
    SELECT min(route) FROM orchestrator_queue
    UNION ALL
    SELECT (SELECT min(route) FROM orchestrator_queue WHERE route > routes.route) FROM routes WHERE routes.route IS NOT NULL
)
SELECT route FROM routes WHERE route IS NOT NULL;

-- messages: of a route, those that wait longest, with the name of the orchestration
-- Messages that a reset put before all others have no time.
SELECT i.name, :now - q.visible_at FROM (
    SELECT instance_id, visible_at FROM orchestrator_queue
    WHERE route = :route AND visible_at <= :now AND visible_at > 0.0 ORDER BY visible_at LIMIT :limit
) AS q JOIN instances AS i USING (instance_id);

-- durations: of the rows to which a step adds
SELECT t.kind, t.name, t.minute, t.durations
FROM json_each(:keys) AS k CROSS JOIN trends AS t
    ON t.kind = k.value ->> 0 AND t.name = k.value ->> 1 AND t.minute = k.value ->> 2;

-- add: the counts of a step
INSERT INTO trends (kind, name, minute, started, completed, failed, cancelled, retries, queue_age, durations)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8,
    value ->> 9
FROM json_each(:rows) WHERE true
ON CONFLICT (kind, name, minute) DO UPDATE SET
    started = started + excluded.started, completed = completed + excluded.completed, failed = failed + excluded.failed,
    cancelled = cancelled + excluded.cancelled, retries = retries + excluded.retries,
    queue_age = coalesce(max(queue_age, excluded.queue_age), queue_age, excluded.queue_age),
    durations = iif(excluded.durations = '{}', durations, excluded.durations);

-- read: the minutes of a name
SELECT minute, started, completed, failed, cancelled, retries, queue_age, durations FROM trends
WHERE kind = :kind AND name = :name AND minute > :since ORDER BY minute;

-- sum: by name; those with failures and retries first
SELECT kind, name, sum(started), sum(completed), sum(failed), sum(cancelled), sum(retries), max(queue_age)
FROM trends WHERE minute > :since AND name <> '' GROUP BY kind, name
ORDER BY sum(failed) + sum(retries) DESC, sum(started) DESC, kind, name LIMIT :limit;

-- histograms: of a name
SELECT durations FROM trends WHERE kind = :kind AND name = :name AND minute > :since AND durations <> '{}';

-- remove: old minutes, up to a number
DELETE FROM trends WHERE (kind, name, minute) IN (
    SELECT kind, name, minute FROM trends WHERE minute < :before ORDER BY minute LIMIT :limit);
