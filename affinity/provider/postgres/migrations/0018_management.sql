-- last_error: of the failure before, for people. The index is for counts and lists by status: a status changes a few times
-- in the life of an instance, and other updates stay heap-only.
ALTER TABLE worker_queue ADD COLUMN last_error text;
CREATE INDEX instances_status ON instances (status, created_at);
