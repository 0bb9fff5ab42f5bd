-- begin: while the work item of the activity is locked by this worker
INSERT INTO activity_waits (wait_id, instance_id, execution_id, activity_id, lock_token, awaited, target_id, seq, began)
SELECT :wait_id, q.instance_id, q.execution_id, q.activity_id, q.lock_token, :awaited, :target_id, :seq, :now
FROM worker_queue AS q
WHERE q.instance_id = :instance_id AND q.execution_id = :execution_id AND q.activity_id = :activity_id
  AND q.lock_worker = :worker_id AND q.locked_until > :now
ON CONFLICT (wait_id) DO NOTHING;

-- end: a wait
DELETE FROM activity_waits WHERE wait_id = :wait_id;

-- remove_ended: waits of activities that no longer run
DELETE FROM activity_waits WHERE NOT EXISTS (
    SELECT 1 FROM worker_queue AS q
    WHERE q.instance_id = activity_waits.instance_id AND q.execution_id = activity_waits.execution_id
      AND q.activity_id = activity_waits.activity_id AND q.lock_token = activity_waits.lock_token
      AND q.locked_until > :now
);

-- read: the waits of an instance, and of the instances that it waits for, directly or not
WITH RECURSIVE found (wait_id, instance_id, awaited, seq, began) AS (
    SELECT w.wait_id, w.instance_id, w.awaited, w.seq, w.began
    FROM activity_waits AS w WHERE w.instance_id = :instance_id AND
        -- include is_waiting
    UNION
    SELECT w.wait_id, w.instance_id, w.awaited, w.seq, w.began
    FROM found CROSS JOIN activity_waits AS w ON w.instance_id = found.awaited AND
        -- include is_waiting
)
SELECT wait_id, instance_id, awaited, seq, began FROM found ORDER BY began, wait_id LIMIT :limit;

-- is_waiting: whether the activity of a wait still runs, and waits for something that has not come
EXISTS (
    SELECT 1 FROM worker_queue AS q
    WHERE q.instance_id = w.instance_id AND q.execution_id = w.execution_id AND q.activity_id = w.activity_id
      AND q.lock_token = w.lock_token AND q.locked_until > :now)
AND CASE WHEN w.target_id IS NULL
    THEN EXISTS (
        SELECT 1 FROM instances AS i
        WHERE i.instance_id = w.awaited AND i.status IN ('pending', 'running', 'suspended'))
    ELSE false
    -- conditions of guests
    END
