-- limits: with the use of their keys
SELECT l.name, l.keyed, l.concurrency, l.rate, l.aging, l.app, l.code, l.declared, l.changes, l.paused, l.ramp, l.resumed_at,
       iif(l.closed_until > :now, l.closed_until, NULL), iif(l.closed_until > :now, l.closed_for, NULL), l.changed_by,
       l.changed_at, coalesce(sum(k.in_use), 0), coalesce(sum(k.waiting), 0),
       (SELECT min(n.oldest) FROM limit_keys AS o
        CROSS JOIN limit_line_keys AS i ON i.key_id = o.key_id
        CROSS JOIN limit_lines AS n ON n.line_id = i.line_id
        WHERE o.limit_name = l.name AND o.waiting > 0),
       l.admitted + coalesce(sum(k.admitted), 0), l.waited + coalesce(sum(k.waited), 0.0), count(k.key_id)
FROM limits AS l LEFT JOIN limit_keys AS k ON k.limit_name = l.name
WHERE true
-- [names
  AND l.name IN (SELECT value FROM json_each(:names))
-- names]
GROUP BY l.name ORDER BY l.name;

-- keys: a page of keys of a limit, or some
SELECT k.key_id, k.key, k.changes, k.paused, iif(k.closed_until > :now, k.closed_until, NULL), k.in_use, k.waiting,
       iif(k.waiting > 0, (
           SELECT min(n.oldest) FROM limit_line_keys AS i CROSS JOIN limit_lines AS n ON n.line_id = i.line_id
           WHERE i.key_id = k.key_id), NULL), k.admitted
FROM limit_keys AS k JOIN limits AS l ON l.name = k.limit_name
WHERE k.limit_name = :limit
-- [keys
  AND k.key IN (SELECT value FROM json_each(:keys))
-- keys]
-- [after
  AND k.key > :after
-- after]
ORDER BY k.key LIMIT :most;

-- waits: work that waits, with its line; of an instance that waits to start: execution 0, activity -1
SELECT json_group_array(json_array(
    j.value ->> 0, j.value ->> 1, j.value ->> 2, w.work_id, w.line_id, w.since, l.priority, l.domain, l.keys))
FROM json_each(:keys) AS j
LEFT JOIN worker_queue AS q
    ON q.instance_id = j.value ->> 0 AND q.execution_id = j.value ->> 1 AND q.activity_id = j.value ->> 2
CROSS JOIN limited_work AS w
    ON w.work_id = iif(j.value ->> 2 = -1,
        (SELECT s.work_id FROM limited_work AS s WHERE s.instance_id = j.value ->> 0 AND s.item_id IS NULL),
        (SELECT s.work_id FROM limited_work AS s WHERE s.item_id = q.id))
CROSS JOIN limit_lines AS l ON l.line_id = w.line_id
WHERE w.admitted_at IS NULL;

-- before: work that is before a piece of work at one key, about
SELECT count(*) FROM (
    SELECT 1 FROM limit_line_keys AS i
    CROSS JOIN limit_lines AS n ON n.line_id = i.line_id
    CROSS JOIN limited_work AS w ON w.line_id = n.line_id AND w.admitted_at IS NULL
    WHERE i.key_id = :key_id AND n.waiting > 0
      AND (n.priority > :priority OR n.priority = :priority AND (w.since, w.work_id) < (:since, :work_id))
    LIMIT :most
);
