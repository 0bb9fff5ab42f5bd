-- last_error: of the failure before, for people. No index has the status of an instance: all updates stay heap-only.
ALTER TABLE worker_queue ADD COLUMN last_error text;
CREATE INDEX suspensions_lasting ON suspensions (suspended_at) WHERE resumed_at IS NULL;
