-- begin: while the work item of the activity is locked by this worker
INSERT INTO activity_waits (wait_id, instance_id, execution_id, activity_id, lock_token, awaited, target_id, seq, began)
SELECT %(wait)s, q.instance_id, q.execution_id, q.activity_id, q.lock_token, %(awaited)s, %(target)s, %(seq)s, clock()
FROM worker_queue q
WHERE q.instance_id = %(instance)s AND q.execution_id = %(execution)s AND q.activity_id = %(activity)s
  AND q.lock_worker = %(worker)s AND q.locked_until > clock()
ON CONFLICT (wait_id) DO NOTHING

-- end: a wait
DELETE FROM activity_waits WHERE wait_id = %(wait)s

-- read: the waits of an instance, and of the instances that it waits for, directly or not
WITH RECURSIVE found AS (
    SELECT
        -- include columns
    FROM activity_waits w WHERE w.instance_id = %(instance)s AND
        -- include is_waiting
    UNION
    SELECT
        -- include columns
    FROM found f JOIN activity_waits w ON w.instance_id = f.awaited AND
        -- include is_waiting
)
SELECT * FROM found ORDER BY began, wait_id LIMIT %(limit)s

-- columns: of a wait
w.wait_id, w.instance_id, w.awaited, w.seq, extract(epoch FROM w.began)::float8 AS began

-- is_waiting: true if the activity of a wait still runs, and the awaited end or reply has not come
activity_runs(w) AND CASE WHEN w.target_id IS NULL
    THEN EXISTS (
        SELECT FROM instances i
        WHERE i.instance_id = w.awaited AND i.status IN ('pending', 'running', 'suspended'))
    ELSE false
    -- conditions of guests
    END
