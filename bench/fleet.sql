-- connections: of workers
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'affinity %%' AND application_name <> 'affinity client'

-- backends: of these connections, and when they were made, in Unix seconds
SELECT pid, extract(epoch FROM backend_start)::float8 FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'affinity %%' AND application_name <> 'affinity client'

-- cut: end these connections; when that began
SELECT extract(epoch FROM statement_timestamp())::float8, count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'affinity %%' AND application_name <> 'affinity client'

-- transactions: of the database so far; each call of a worker is one
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()

-- begun: walks of which a turn was committed
SELECT count(*) FROM affinity.instances WHERE starts_with(instance_id, 'killed-') AND event_count > 3
