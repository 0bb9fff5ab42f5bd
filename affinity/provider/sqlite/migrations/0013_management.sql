-- last_error: of the failure before, for people.
ALTER TABLE worker_queue ADD COLUMN last_error TEXT;
CREATE INDEX suspensions_lasting ON suspensions (suspended_at) WHERE resumed_at IS NULL;
