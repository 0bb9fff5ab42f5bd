-- adopted: the resource that an activity has, or that an earlier attempt of it has created, for the same instance of its id:
-- the beginning of the resource's id says it, or the time: not before the activity was queued
SELECT resource_id, name, handle FROM (
    SELECT * FROM resources WHERE resource_id = :held AND name = :name
    UNION ALL
    SELECT * FROM resources AS a
    WHERE instance_id = :instance_id AND execution_id = :execution_id AND activity_id = :activity_id AND name = :name
      AND CASE
          WHEN instr(a.resource_id, '-') AND instr(:resource_id, '-')
          THEN substr(a.resource_id, 1, instr(a.resource_id, '-')) = substr(:resource_id, 1, instr(:resource_id, '-'))
          ELSE NOT EXISTS (
              SELECT 1 FROM worker_queue AS q
              WHERE q.instance_id = a.instance_id AND q.execution_id = a.execution_id AND q.activity_id = a.activity_id
                AND q.enqueued_at > a.created_at)
          END
) AS r
WHERE handle IS NOT NULL AND taken_until IS NULL
ORDER BY resource_id IS NOT :held
LIMIT 1;

-- adopt: it is this activity's now, and from now on
UPDATE resources SET
    instance_id = :instance_id, execution_id = :execution_id, activity_id = :activity_id, created_at = :now
WHERE resource_id = :resource_id;

-- add: a new one
INSERT INTO resources (resource_id, name, instance_id, execution_id, activity_id, created_at)
VALUES (:resource_id, :name, :instance_id, :execution_id, :activity_id, :now)
ON CONFLICT (resource_id) DO NOTHING;

-- set_handle: it is created
UPDATE resources SET handle = :handle WHERE resource_id = :resource_id AND taken_until IS NULL;

-- get: one that is not being destroyed
SELECT resource_id, name, handle FROM resources
WHERE resource_id = :resource_id AND handle IS NOT NULL AND taken_until IS NULL;

-- names: of all resources
WITH RECURSIVE named (name) AS (
    SELECT min(name) FROM resources
    UNION ALL
    SELECT (SELECT min(r.name) FROM resources AS r WHERE r.name > n.name) FROM named AS n WHERE n.name IS NOT NULL
)
SELECT json_group_array(n.name) FROM named AS n WHERE n.name IS NOT NULL;

-- unused: resources that no record has in its labels, and whose activity is not queued any more
SELECT r.resource_id, r.name, r.handle
FROM json_each(:names) AS j CROSS JOIN resources AS r ON r.name = j.value
WHERE (r.taken_until IS NULL OR r.taken_until <= :now)
  AND NOT EXISTS (
      SELECT 1 FROM worker_queue AS q
      WHERE q.instance_id = r.instance_id AND q.execution_id = r.execution_id AND q.activity_id = r.activity_id)
  AND NOT EXISTS (
      SELECT 1 FROM session_labels AS l WHERE l.key = 'affinity.resource/' || r.name AND l.value = r.resource_id)
ORDER BY r.taken_until -- those that could not be destroyed go behind
LIMIT :limit;

-- take: they are being destroyed
UPDATE resources SET taken_until = :until WHERE resource_id IN (SELECT value FROM json_each(:rows));

-- remove: destroyed resources
DELETE FROM resources WHERE taken_until IS NOT NULL AND resource_id IN (SELECT value FROM json_each(:rows));
