-- instance: one instance
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
       i.owner_worker, i.event_count, i.created_at, i.updated_at, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
FROM instances AS i LEFT JOIN suspensions AS s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE i.instance_id = :instance_id;

-- instances: one page of instances, newest first
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
       i.owner_worker, i.event_count, i.created_at, i.updated_at, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
FROM instances AS i LEFT JOIN suspensions AS s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE (i.created_at, i.instance_id) < (:before, :before_id)
  AND (:any_status OR i.status IN (SELECT value FROM json_each(:status)))
  AND (:name IS NULL OR i.name = :name)
  AND (:prefix IS NULL OR substr(i.instance_id, 1, length(:prefix)) = :prefix)
  AND (:reason IS NULL OR s.error_type = :reason)
ORDER BY i.created_at DESC, i.instance_id DESC
LIMIT :limit;

-- children: the same of one parent's
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
       i.owner_worker, i.event_count, i.created_at, i.updated_at, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
FROM instances AS i LEFT JOIN suspensions AS s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE i.parent_id = :parent_id AND (i.created_at, i.instance_id) < (:before, :before_id)
  AND (:any_status OR i.status IN (SELECT value FROM json_each(:status)))
  AND (:name IS NULL OR i.name = :name)
  AND (:prefix IS NULL OR substr(i.instance_id, 1, length(:prefix)) = :prefix)
  AND (:reason IS NULL OR s.error_type = :reason)
ORDER BY i.created_at DESC, i.instance_id DESC
LIMIT :limit;

-- delete_history: all executions of an instance
DELETE FROM history WHERE instance_id = ?;

-- delete_instance: the row itself
DELETE FROM instances WHERE instance_id = ?;

-- counts: rows by kind
SELECT 'work_items', count(*) FROM worker_queue
UNION ALL SELECT 'messages', count(*) FROM orchestrator_queue
UNION ALL SELECT 'sessions', count(*) FROM sessions
UNION ALL SELECT 'workers', count(*) FROM workers
UNION ALL SELECT 'instances', count(*) FROM instances;
