-- mark: that this attempt has begun, in a transaction of its own, so that an earlier one that is late runs nothing
INSERT INTO affinity_once (work, name, instance_id, activity, attempt)
VALUES (:work, :name, :instance_id, :activity, :attempt)
ON CONFLICT (work, name) DO UPDATE SET attempt = excluded.attempt
WHERE affinity_once.result IS NULL AND affinity_once.attempt < excluded.attempt
RETURNING 1;

-- claim: the row, until the transaction ends; no row: another attempt has it
-- It waits for an attempt that runs the block now. The empty text stands for a result that is not there yet: only the
-- transaction itself sees it, unless the block has committed by itself.
INSERT INTO affinity_once (work, name, instance_id, activity, attempt, result)
VALUES (:work, :name, :instance_id, :activity, :attempt, '')
ON CONFLICT (work, name) DO UPDATE SET attempt = excluded.attempt, result = '', written_at = excluded.written_at
WHERE affinity_once.result IS NULL AND affinity_once.attempt <= excluded.attempt
RETURNING 1;

-- read: the result of another attempt; none: it has begun, and has a higher number than this one
SELECT result FROM affinity_once WHERE work = :work AND name = :name;

-- finish: the result, if the transaction that has claimed the row goes on
UPDATE affinity_once SET result = :result WHERE work = :work AND name = :name AND result = '' RETURNING 1;

-- sqlite_delete: some rows that are older than so many seconds
DELETE FROM affinity_once WHERE (work, name) IN (
    SELECT work, name FROM affinity_once
    WHERE written_at < strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || :seconds || ' seconds') LIMIT :most
) RETURNING 1;

-- postgres_delete: some rows that are older than so many seconds
DELETE FROM affinity_once WHERE (work, name) IN (
    SELECT work, name FROM affinity_once
    WHERE written_at < clock_timestamp() - make_interval(secs => :seconds) LIMIT :most
) RETURNING 1;
