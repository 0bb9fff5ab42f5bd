-- instances: one page of instances, newest first; or one instance
-- Only the parts that a filter needs are run: each stands between `-- [name` and `-- name]`.
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
       i.owner_worker, i.event_count, i.created_at, i.updated_at, i.generation, i.session_id, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
FROM instances AS i
-- [one_status
INDEXED BY instances_by_status
-- one_status]
LEFT JOIN suspensions AS s ON i.status = 'suspended' AND s.instance_id = i.instance_id
-- [instance_id
WHERE i.instance_id = :instance_id
-- instance_id]
-- [page
WHERE (i.created_at, i.instance_id) < (:before, :before_id)
-- page]
-- [session_id
  AND i.session_id = :session_id
-- session_id]
-- [parent_id
  AND i.parent_id = :parent_id
-- parent_id]
-- [one_status
  AND i.status = :one_status AND i.status IN ('suspended', 'failed', 'cancelled')
-- one_status]
-- [status
  AND i.status IN (SELECT value FROM json_each(:status))
-- status]
-- [name
  AND i.name = :name
-- name]
-- [version
  AND i.version = :version
-- version]
-- [created_since
  AND i.created_at >= :created_since
-- created_since]
-- [created_before
  AND i.created_at < :created_before
-- created_before]
-- [most
  AND i.created_at >= coalesce((
      SELECT m.created_at FROM instances AS m WHERE m.created_at < :until AND m.created_at <= :before
      ORDER BY m.created_at DESC LIMIT 1 OFFSET :most - 1), 0)
-- most]
-- [most_of_status
  AND i.created_at >= coalesce((
      SELECT m.created_at FROM instances AS m INDEXED BY instances_by_status
      WHERE m.status = :one_status AND m.status IN ('suspended', 'failed', 'cancelled') AND m.created_at < :until AND m.created_at <= :before
      ORDER BY m.created_at DESC LIMIT 1 OFFSET :most - 1), 0)
-- most_of_status]
-- [prefix
  AND substr(i.instance_id, 1, length(:prefix)) = :prefix
-- prefix]
-- [reason
  AND s.error_type = :reason
-- reason]
-- [page
ORDER BY i.created_at DESC, i.instance_id DESC
LIMIT :limit
-- page];

-- restart: begin a new generation of an ended instance, in its next execution
UPDATE instances SET
    generation = :generation,
    version = :version,
    execution_id = execution_id + 1,
    event_count = 0,
    status = 'pending',
    custom_status = NULL,
    output = NULL,
    error = NULL,
    parent_id = NULL,
    parent_generation = NULL,
    on_deleted = NULL,
    session_id = :session_id,
    owner_incarnation = NULL,
    claims = 0,
    unknown_since = NULL,
    unread = 0,
    updated_at = :now
WHERE instance_id = :instance_id AND generation = :ended AND name = :name AND status IN ('completed', 'failed', 'cancelled');

-- tree: an instance, and if asked for its children and theirs, each with its status
WITH RECURSIVE tree (instance_id, generation, status) AS (
    SELECT instance_id, generation, status FROM instances WHERE instance_id = :instance_id
    UNION
    SELECT c.instance_id, c.generation, c.status
    FROM tree AS t CROSS JOIN instances AS c ON c.parent_id = t.instance_id
    WHERE :tree AND (c.parent_generation IS NULL OR c.parent_generation = t.generation)
)
SELECT instance_id, status FROM tree;

-- orphaned: what parents that stay are sent when these instances are deleted
SELECT p.instance_id, p.generation, c.on_deleted
FROM json_each(:instance_ids) AS j
CROSS JOIN instances AS c ON c.instance_id = j.value
CROSS JOIN instances AS p ON p.instance_id = c.parent_id AND p.generation = c.parent_generation
WHERE c.on_deleted IS NOT NULL AND c.status NOT IN ('completed', 'failed', 'cancelled')
  AND p.instance_id NOT IN (SELECT value FROM json_each(:instance_ids));

-- delete_history: all executions of instances
DELETE FROM history WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- delete_ended: the ends of all executions of instances
DELETE FROM ended_executions WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- delete_sizes: the measured sizes of instances
DELETE FROM instance_sizes WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- delete_keys: keys of messages to instances
DELETE FROM message_keys WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- delete_instances: the rows themselves
DELETE FROM instances WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- clear_items: all work items of instances
DELETE FROM worker_queue WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- clear_messages: all messages of instances
DELETE FROM orchestrator_queue WHERE instance_id IN (SELECT value FROM json_each(:rows));
