-- postgresql: instances that ended three days ago, one second after another, each with two events, and as many moves
WITH old AS (SELECT n, clock() - interval '3 days' - n * interval '1 s' AS at FROM generate_series(1, %(rows)s) AS n),
made AS (
    INSERT INTO instances (instance_id, generation, name, status, event_count, created_at, updated_at)
    SELECT 'old-' || n, '1', 'walk', 'completed', 2, at, at FROM old),
ended AS (INSERT INTO ended_executions (instance_id, execution_id, is_last, ended_at)
    SELECT 'old-' || n, 1, true, at FROM old ON CONFLICT DO NOTHING),
events AS (INSERT INTO history (instance_id, execution_id, event_id, event)
    SELECT 'old-' || n, 1, e, '{}' FROM old CROSS JOIN generate_series(1, 2) AS e)
INSERT INTO session_moves (epoch, session_id, from_worker, to_worker, reason, moved_at, queued)
SELECT -n, 'old-' || n %% 7000, 'a', 'b', 'idle_expired', at, 0 FROM old;

-- sqlite: the same
WITH RECURSIVE old (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM old WHERE n < :rows)
INSERT INTO instances (instance_id, generation, name, status, event_count, created_at, updated_at)
SELECT 'old-' || n, '1', 'walk', 'completed', 2, :now - 259200 - n, :now - 259200 - n FROM old;

-- sqlite_ended: their ends
INSERT OR REPLACE INTO ended_executions (instance_id, execution_id, is_last, ended_at)
SELECT instance_id, 1, 1, updated_at FROM instances WHERE instance_id LIKE 'old-%';

-- sqlite_events: their histories
INSERT INTO history (instance_id, execution_id, event_id, event)
SELECT instance_id, 1, e.value, '{}' FROM instances CROSS JOIN json_each('[1, 2]') AS e WHERE instance_id LIKE 'old-%';

-- sqlite_moves: as many moves
INSERT INTO session_moves (session_id, from_worker, to_worker, reason, moved_at, queued, epoch)
SELECT instance_id, 'a', 'b', 'idle_expired', updated_at, 0, rowid FROM instances WHERE instance_id LIKE 'old-%';
