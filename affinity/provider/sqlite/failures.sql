-- keep: the failures of turns; what a former attempt to commit them has kept stays
INSERT OR IGNORE INTO failures (
    instance_id, execution_id, activity_id, attempt, kind, name, error_type, is_retried, failed_at, error
)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, 0, :now, value ->> 7
FROM json_each(:rows);

-- keep_attempt: an attempt of an activity that was given back
INSERT OR IGNORE INTO failures (
    instance_id, execution_id, activity_id, attempt, kind, name, error_type, is_retried, failed_at, error, stack
)
SELECT instance_id, execution_id, activity_id, attempts, 'activity', name, :error_type, 1, :now, :error, :stack
FROM worker_queue WHERE id = :item
RETURNING attempt;

-- drop_stacks: of a short range of attempts; those before it have lost their stacks already
UPDATE failures SET stack = NULL
WHERE instance_id = :instance_id AND execution_id = :execution_id AND activity_id = :activity_id
  AND attempt BETWEEN max(:first + 1, :attempt - 2 * :last) AND :attempt - :last AND stack IS NOT NULL;

-- shown: the columns of a listing
f.instance_id, f.execution_id, f.activity_id, f.attempt, f.kind, f.name, f.error_type, f.is_retried, f.failed_at, f.error

-- attempts: the last ones of an execution, with their stacks
SELECT * FROM (
    SELECT
        -- include shown
        , f.stack
    FROM failures AS f
    WHERE f.instance_id = :instance_id AND f.execution_id = :execution_id AND f.kind = 'activity'
    ORDER BY f.failed_at DESC, f.activity_id DESC, f.attempt DESC LIMIT :limit
) ORDER BY failed_at, activity_id, attempt;

-- list: a page, newest first
-- Parts: the conditions that are asked for.
SELECT
    -- include shown
    , NULL
FROM failures AS f
-- [error_type
INDEXED BY failures_by_group
-- error_type]
WHERE f.failed_at >= :since
-- [error_type
  AND f.kind = :kind AND f.name = :name AND f.error_type = :error_type
-- error_type]
-- [after
  AND f.failed_at <= :at
  AND (f.failed_at, f.instance_id, f.execution_id, f.activity_id, f.attempt)
    < (:at, :after_instance, :after_execution, :after_activity, :after_attempt)
-- after]
ORDER BY f.failed_at DESC, f.instance_id DESC, f.execution_id DESC, f.activity_id DESC, f.attempt DESC LIMIT :limit;

-- classes: of the errors of one name, found one by one in the index
WITH RECURSIVE classes (error_type) AS (
    SELECT min(error_type) FROM failures WHERE kind = :kind AND name = :name
    UNION ALL
    SELECT (SELECT min(f.error_type) FROM failures AS f WHERE f.kind = :kind AND f.name = :name AND f.error_type > c.error_type)
    FROM classes AS c WHERE c.error_type IS NOT NULL
)
SELECT error_type FROM classes WHERE error_type IS NOT NULL;

-- groups: by kind, name and class, found one by one in the index
WITH RECURSIVE named (id) AS (
    SELECT (SELECT first.id FROM failures AS first ORDER BY first.kind, first.name, first.error_type LIMIT 1)
    UNION ALL
    SELECT (
        SELECT later.id FROM failures AS later WHERE (later.kind, later.name, later.error_type) > (f.kind, f.name, f.error_type)
        ORDER BY later.kind, later.name, later.error_type LIMIT 1)
    FROM named CROSS JOIN failures AS f ON f.id = named.id
)
SELECT f.kind, f.name, f.error_type FROM named CROSS JOIN failures AS f ON f.id = named.id LIMIT :limit;

-- measure: one group; its newest rows, and the first of the time
SELECT count(*), count(DISTINCT instance_id), (
    SELECT failed_at FROM failures
    WHERE kind = :kind AND name = :name AND error_type = :error_type AND failed_at >= :since ORDER BY failed_at LIMIT 1
), max(failed_at)
FROM (
    SELECT instance_id, failed_at FROM failures
    WHERE kind = :kind AND name = :name AND error_type = :error_type AND failed_at >= :since
    ORDER BY failed_at DESC LIMIT :limit
);

-- remove: old ones without a stack, up to a number
DELETE FROM failures WHERE id IN (
    SELECT id FROM failures WHERE stack IS NULL AND failed_at < :before ORDER BY failed_at LIMIT :limit
);
