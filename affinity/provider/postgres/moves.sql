-- moves: between two epochs
-- Parts: the conditions that are asked for.
SELECT m.session_id, m.from_worker, m.to_worker, m.epoch, m.reason, m.moved_at, m.queued, m.hydrate_seconds,
    m.hydrate_bytes, m.gap_seconds
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

-- report: what hydrates have cost, and why the sessions had moved
WITH report AS MATERIALIZED (
    SELECT m.epoch, m.reason, r.n, r.seconds, r.bytes
    FROM unnest(%(epoch)s, %(seconds)s, %(bytes)s) WITH ORDINALITY AS r (epoch, seconds, bytes, n)
    JOIN session_moves m USING (epoch)
), locked AS MATERIALIZED (
    SELECT m.epoch FROM session_moves m
    WHERE m.epoch = ANY (ARRAY (SELECT epoch FROM report WHERE seconds IS NOT NULL)) AND m.hydrate_seconds IS NULL
    ORDER BY m.epoch FOR NO KEY UPDATE
), updated AS (
    UPDATE session_moves m SET hydrate_seconds = r.seconds, hydrate_bytes = r.bytes
    FROM (SELECT DISTINCT ON (epoch) epoch, seconds, bytes FROM report WHERE seconds IS NOT NULL ORDER BY epoch, n) r
    WHERE m.epoch = r.epoch AND m.epoch IN (SELECT epoch FROM locked)
)
SELECT n, reason FROM report
