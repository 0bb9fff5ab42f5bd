-- Instances that had such a status before anything recorded it. Apart from the migration before, so that the lock that a
-- trigger needs is not held meanwhile. With a lock on each of them, so that none changes its status at this moment unseen.
INSERT INTO instances_by_status (status, created_at, instance_id)
SELECT i.status, i.created_at, i.instance_id FROM instances i
WHERE i.status IN ('suspended', 'failed', 'cancelled')
FOR SHARE
ON CONFLICT DO NOTHING;
