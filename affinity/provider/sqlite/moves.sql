-- moves: between two epochs
-- Parts: the conditions that are asked for.
SELECT m.session_id, m.from_worker, m.to_worker, m.epoch, m.reason, m.moved_at, m.queued, m.hydrate_seconds,
       m.hydrate_bytes, m.gap_seconds
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

-- remove: the oldest ones, up to a number
DELETE FROM session_moves
WHERE epoch IN (SELECT epoch FROM session_moves WHERE epoch > 0 ORDER BY epoch LIMIT :limit) AND moved_at < :before
  AND (SELECT moved_at FROM session_moves WHERE epoch > 0 ORDER BY epoch LIMIT 1) < :before;
