-- instance: one instance
SELECT instance_id, name, version, execution_id, status, custom_status, output, error, parent_id, owner_worker,
       event_count, created_at, updated_at
FROM instances WHERE instance_id = :instance_id;

-- instances: one page of instances, newest first
SELECT instance_id, name, version, execution_id, status, custom_status, output, error, parent_id, owner_worker,
       event_count, created_at, updated_at
FROM instances
WHERE (created_at, instance_id) < (:before, :before_id)
  AND (:any_status OR status IN (SELECT value FROM json_each(:status)))
  AND (:name IS NULL OR name = :name)
  AND (:prefix IS NULL OR substr(instance_id, 1, length(:prefix)) = :prefix)
ORDER BY created_at DESC, instance_id DESC
LIMIT :limit;

-- children: the same of one parent's
SELECT instance_id, name, version, execution_id, status, custom_status, output, error, parent_id, owner_worker,
       event_count, created_at, updated_at
FROM instances
WHERE parent_id = :parent_id AND (created_at, instance_id) < (:before, :before_id)
  AND (:any_status OR status IN (SELECT value FROM json_each(:status)))
  AND (:name IS NULL OR name = :name)
  AND (:prefix IS NULL OR substr(instance_id, 1, length(:prefix)) = :prefix)
ORDER BY created_at DESC, instance_id DESC
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
