-- keep: the failures of turns and of parts; what a former attempt to commit them has kept stays
INSERT OR IGNORE INTO failures (
    instance_id, execution_id, activity_id, attempt, kind, name, error_type, is_retried, failed_at, error
)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 8, :now, value ->> 7
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

-- list_failures: a page, newest first
-- Parts: the conditions that are asked for.
SELECT
    -- include shown
    , NULL
FROM failures AS f
-- [name
INDEXED BY failures_by_name
-- name]
-- [error_type
INDEXED BY failures_by_group
-- error_type]
WHERE f.failed_at >= :since
-- [name
  AND f.kind = :kind AND f.name = :name
-- name]
-- [error_type
  AND f.kind = :kind AND f.name = :name AND f.error_type = :error_type
-- error_type]
-- [after
  AND f.failed_at <= :at
  AND (f.failed_at, f.instance_id, f.execution_id, f.activity_id, f.attempt)
    < (:at, :after_instance, :after_execution, :after_activity, :after_attempt)
-- after]
ORDER BY f.failed_at DESC, f.instance_id DESC, f.execution_id DESC, f.activity_id DESC, f.attempt DESC LIMIT :limit;

-- list_suspended: a page of the instances that are suspended, newest first, with the columns of `list_failures`
-- Parts: as in `list_failures`.
SELECT newest.instance_id, newest.execution_id, 0, 0, 'suspension', newest.name, newest.error_type, 0, newest.suspended_at, newest.message, NULL
FROM suspensions AS newest
-- [name
INDEXED BY suspensions_by_name
-- name]
-- [error_type
INDEXED BY suspensions_by_group
-- error_type]
WHERE newest.resumed_at IS NULL
-- [name
  AND newest.name = :name
-- name]
-- [error_type
  AND newest.name = :name AND newest.error_type = :error_type
-- error_type]
-- [after
  AND newest.suspended_at <= :at
  AND (newest.suspended_at, newest.instance_id, newest.execution_id, 0, 0)
    < (:at, :after_instance, :after_execution, :after_activity, :after_attempt)
-- after]
ORDER BY newest.suspended_at DESC, newest.instance_id DESC LIMIT :limit;

-- groups: by kind, name and class, found one by one in the index: a comparison of rows would use its first column alone
WITH RECURSIVE named (id) AS (
    SELECT (SELECT first.id FROM failures AS first ORDER BY first.kind, first.name, first.error_type LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT later.id FROM failures AS later INDEXED BY failures_by_group
         WHERE later.kind = f.kind AND later.name = f.name AND later.error_type > f.error_type
         ORDER BY later.error_type LIMIT 1),
        (SELECT later.id FROM failures AS later INDEXED BY failures_by_group
         WHERE later.kind = f.kind AND later.name > f.name ORDER BY later.name, later.error_type LIMIT 1),
        (SELECT later.id FROM failures AS later INDEXED BY failures_by_group
         WHERE later.kind > f.kind ORDER BY later.kind, later.name, later.error_type LIMIT 1))
    FROM named CROSS JOIN failures AS f ON f.id = named.id
)
SELECT f.kind, f.name, f.error_type FROM named CROSS JOIN failures AS f ON f.id = named.id LIMIT :limit;

-- groups_suspended: the same of the instances that are suspended
WITH RECURSIVE named (id) AS (
    SELECT (
        SELECT first.instance_id FROM suspensions AS first INDEXED BY suspensions_by_group
        WHERE first.resumed_at IS NULL ORDER BY first.name, first.error_type LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT later.instance_id FROM suspensions AS later INDEXED BY suspensions_by_group
         WHERE later.resumed_at IS NULL AND later.name = s.name AND later.error_type > s.error_type
         ORDER BY later.error_type LIMIT 1),
        (SELECT later.instance_id FROM suspensions AS later INDEXED BY suspensions_by_group
         WHERE later.resumed_at IS NULL AND later.name > s.name ORDER BY later.name, later.error_type LIMIT 1))
    FROM named CROSS JOIN suspensions AS s ON s.instance_id = named.id
)
SELECT 'suspension', s.name, s.error_type FROM named CROSS JOIN suspensions AS s ON s.instance_id = named.id LIMIT :limit;

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

-- measure_suspended: the same of the instances that are suspended
SELECT count(*), count(*), (
    SELECT suspended_at FROM suspensions INDEXED BY suspensions_by_group
    WHERE resumed_at IS NULL AND name = :name AND error_type = :error_type ORDER BY suspended_at LIMIT 1
), max(suspended_at)
FROM (
    SELECT suspended_at FROM suspensions INDEXED BY suspensions_by_group
    WHERE resumed_at IS NULL AND name = :name AND error_type = :error_type ORDER BY suspended_at DESC LIMIT :limit
);

-- remove: old ones without a stack, up to a number
DELETE FROM failures WHERE id IN (
    SELECT id FROM failures WHERE stack IS NULL AND failed_at < :before ORDER BY failed_at LIMIT :limit
);
