-- moves: between two epochs
-- Parts: the conditions that are asked for.
SELECT m.session_id, m.from_worker, m.to_worker, m.epoch, m.reason, m.moved_at, m.queued, m.hydrate_seconds,
       m.hydrate_bytes, m.gap_seconds, m.resource_seconds
FROM session_moves AS m
WHERE m.epoch > :after AND m.epoch < :before
-- [session
  AND m.session_id = :session
-- session]
-- [reason
  AND m.reason = :reason
-- reason];

-- list: a page of moves, the last ones before an epoch, or (ASC) the first ones after one
-- Parts: as `moves`. Moves of a worker are read along two indexes.
SELECT * FROM (
    -- include moves
-- [worker
      AND m.to_worker = :worker
-- worker]
    ORDER BY m.epoch DESC LIMIT :limit
)
-- [worker
UNION ALL
SELECT * FROM (
    -- include moves
      AND m.from_worker = :worker AND m.to_worker <> :worker
    ORDER BY m.epoch DESC LIMIT :limit
)
-- worker]
;

-- reasons: of the moves of some epochs
SELECT json_group_array(json_array(m.epoch, m.reason))
FROM json_each(:epochs) AS j CROSS JOIN session_moves AS m ON m.epoch = j.value;

-- report: what a hydrate has cost; the first of one move counts
UPDATE session_moves SET hydrate_seconds = :seconds, hydrate_bytes = :bytes
WHERE epoch = :epoch AND hydrate_seconds IS NULL;

-- report_resources: what loads of resources have cost; the first of each resource counts
UPDATE session_moves SET resource_seconds = json_patch(:resources, resource_seconds) WHERE epoch = :epoch;

-- uses: of one session, by holds, work, work at limits, and watches
SELECT * FROM (
    SELECT 'hold', h.instance_id, NULL, NULL, NULL, h.until FROM session_holds AS h
    WHERE h.session_id = :session AND h.until > :now ORDER BY h.until, h.instance_id LIMIT :limit
)
UNION ALL
SELECT * FROM (
    SELECT 'work', found.instance_id, found.name, w.worker_id,
           :now - iif(w.worker_id IS NULL, found.enqueued_at, coalesce(found.locked_at, found.enqueued_at)), NULL
    FROM (
        SELECT * FROM worker_queue WHERE session_id = :session
        UNION ALL
        SELECT * FROM worker_queue WHERE order_session = :session AND session_id IS NULL AND route NOT IN ('gate', 'gated')
    ) AS found
    LEFT JOIN workers AS w
        ON w.worker_id = found.lock_worker AND w.incarnation = found.lock_incarnation AND w.locked_until > :now
        AND found.locked_until > :now
    ORDER BY w.worker_id IS NULL, found.enqueued_at, found.instance_id, found.activity_id LIMIT :limit
)
UNION ALL
SELECT * FROM (
    SELECT 'limited', q.instance_id, q.name, NULL, :now - q.enqueued_at, NULL FROM worker_queue AS q
    WHERE q.gate_session = :session AND q.route IN ('gate', 'gated')
    ORDER BY q.enqueued_at, q.instance_id, q.activity_id LIMIT :limit
)
UNION ALL
SELECT * FROM (
    SELECT 'watch', s.instance_id, NULL, NULL, NULL, NULL FROM session_watches AS s
    WHERE s.session_id = :session ORDER BY s.instance_id LIMIT :limit
);

-- remove: the oldest ones, up to a number
DELETE FROM session_moves
WHERE epoch IN (SELECT epoch FROM session_moves WHERE epoch > 0 ORDER BY epoch LIMIT :limit) AND moved_at < :before
  AND (SELECT moved_at FROM session_moves WHERE epoch > 0 ORDER BY epoch LIMIT 1) < :before;
