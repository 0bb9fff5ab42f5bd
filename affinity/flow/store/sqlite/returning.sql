-- has_work: whether work waits or has slots
SELECT EXISTS (SELECT 1 FROM limited_work);

-- place: where the last call has stopped
SELECT value FROM counters WHERE name = 'limited_work';

-- set_place: where the next one begins
INSERT INTO counters (name, value) VALUES ('limited_work', :place)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE value <> excluded.value;

-- held: how many of the next pieces of work with slots a call looks at, and the last of them
SELECT count(*), max(work_id) FROM (
    SELECT work_id FROM limited_work WHERE admitted_at IS NOT NULL AND work_id > :after ORDER BY work_id LIMIT :window
);

-- find: items whose lock has expired, or which no worker has fetched though other work waits for their slots
SELECT json_group_array(json_array(q.id, q.lock_token IS NOT NULL))
FROM limited_work AS w CROSS JOIN worker_queue AS q ON q.id = w.item_id
WHERE w.admitted_at IS NOT NULL AND w.work_id > :after AND w.work_id <= :until
  AND CASE WHEN q.lock_token IS NULL THEN w.admitted_at <= :untaken_since AND q.visible_at <= :now AND EXISTS (
          -- It takes the last slot from others. Of a rate alone it takes nothing, and would only use it again.
          SELECT 1 FROM limit_line_keys AS i CROSS JOIN limit_keys AS k USING (key_id)
          JOIN limits AS l ON l.name = k.limit_name AND l.declared
          WHERE i.line_id = w.line_id AND k.waiting > 0 AND k.in_use >= CASE
              WHEN json_type(k.changes, '$.concurrency') IS NOT NULL THEN k.changes ->> 'concurrency'
              WHEN json_type(l.changes, '$.concurrency') IS NOT NULL THEN l.changes ->> 'concurrency'
              ELSE l.concurrency END)
      ELSE q.locked_until <= :now
          OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now) END;

-- return_lost: interrupted work to its gate; it keeps its age
UPDATE worker_queue SET
    route = 'gate', gate_session = coalesce(session_id, gate_session), session_id = NULL, lock_worker = NULL,
    lock_incarnation = NULL, lock_token = NULL, locked_until = NULL, attend_at = NULL, passed_over = NULL,
    visible_at = min(enqueued_at, visible_at)
WHERE id IN (SELECT value FROM json_each(:rows));

-- return_untaken: work that no worker takes; it pauses for about as long as it was passed over, and not beyond its end
UPDATE worker_queue SET
    route = 'gate', gate_session = coalesce(session_id, gate_session), session_id = NULL, attend_at = NULL,
    visible_at = :now + p.pause, passed_over = p.waited + p.pause
FROM (
    SELECT w.id, w.waited,
        max(0.0, min(max(:least, w.passed_over), :most, coalesce(w.fail_after - w.waited, :most))) AS pause
    FROM (
        SELECT q.id, q.fail_after, coalesce(q.passed_over, 0.0) AS passed_over,
            max(0.0, :now - max(coalesce(q.waits_since, q.enqueued_at), coalesce(q.locked_at, 0.0))) AS waited
        FROM worker_queue AS q WHERE q.id IN (SELECT value FROM json_each(:rows))
    ) AS w
) AS p WHERE worker_queue.id = p.id;

-- unused_lines: without work, for a while
SELECT json_group_array(line_id) FROM (
    SELECT line_id FROM limit_lines AS l
    WHERE waiting = 0 AND used_at < :before AND NOT EXISTS (SELECT 1 FROM limited_work AS w WHERE w.line_id = l.line_id)
    ORDER BY used_at LIMIT :limit
);

-- unlink: lines from their keys
DELETE FROM limit_line_keys WHERE line_id IN (SELECT value FROM json_each(:rows));

-- remove_lines: without work
DELETE FROM limit_lines WHERE line_id IN (SELECT value FROM json_each(:rows));

-- unused_keys: without lines, use and changes, with their counts
SELECT json_group_array(json_array(key_id, limit_name, admitted, waited)) FROM (
    SELECT k.key_id, k.limit_name, k.admitted, k.waited FROM limit_keys AS k LEFT JOIN limits AS l ON l.name = k.limit_name
    WHERE k.in_use = 0 AND k.waiting = 0 AND k.changes = '{}' AND NOT k.paused AND k.ramp IS NULL
      AND coalesce(k.closed_until, 0.0) <= :now AND coalesce(k.last_admitted, 0.0) < :before AND k.spaced_to < :now
      AND NOT EXISTS (SELECT 1 FROM limit_line_keys AS i WHERE i.key_id = k.key_id)
      AND NOT EXISTS (
          SELECT 1 FROM json_each(k.used) AS u
          WHERE u.value ->> 0 > :now - 2 * coalesce(l.changes ->> '$.rate[1]', l.rate ->> '$[1]', 0.0))
    LIMIT :limit
);

-- keep_counts: of keys that are removed
UPDATE limits SET admitted = admitted + s.admitted, waited = waited + s.waited
FROM (
    SELECT value ->> 1 AS name, sum(value ->> 2) AS admitted, sum(value ->> 3) AS waited FROM json_each(:rows) GROUP BY name
) AS s WHERE limits.name = s.name;

-- remove_keys: unused ones
DELETE FROM limit_keys WHERE key_id IN (SELECT value FROM json_each(:rows));
