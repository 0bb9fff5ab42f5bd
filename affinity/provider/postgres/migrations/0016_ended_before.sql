-- Executions that had ended before anything recorded it. Apart from the migration before, so that the lock that a trigger
-- needs is not held meanwhile. The last change of an ended instance is its end; of an earlier execution no more is known
-- than that it ended before.
INSERT INTO ended_executions (instance_id, execution_id, is_last, ended_at)
SELECT i.instance_id, i.execution_id, true, i.updated_at
FROM instances i WHERE i.status IN ('completed', 'failed', 'cancelled')
UNION ALL
SELECT i.instance_id, e.id, false, i.updated_at
FROM instances i CROSS JOIN LATERAL generate_series(1, i.execution_id - 1) AS e (id)
WHERE i.execution_id > 1
  AND EXISTS (SELECT FROM history h WHERE h.instance_id = i.instance_id AND h.execution_id = e.id AND h.event_id = 1)
ON CONFLICT (instance_id, execution_id) DO NOTHING;
