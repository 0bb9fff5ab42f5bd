-- Listings by the statuses that few instances have. The statement has to repeat this condition, word for word.
CREATE INDEX instances_by_status ON instances (status, created_at, instance_id)
WHERE status IN ('suspended', 'failed', 'cancelled');
