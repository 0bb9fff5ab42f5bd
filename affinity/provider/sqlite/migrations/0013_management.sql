-- last_error: of the failure before, for people. The index is for counts by status.
ALTER TABLE worker_queue ADD COLUMN last_error TEXT;
CREATE INDEX instances_by_status ON instances (status, created_at);
