-- get: the limits of the database, if there are any
SELECT instances, unread_events, instance_bytes FROM quotas;

-- clear: forget them
DELETE FROM quotas;

-- set: remember them
INSERT INTO quotas (instances, unread_events, instance_bytes) VALUES (:instances, :unread_events, :instance_bytes);

-- clear_sizes: forget what was measured
DELETE FROM instance_sizes;

-- count_instances: all instances, from now on kept by triggers
INSERT OR REPLACE INTO counters (name, value) SELECT 'instances', count(*) FROM instances;

-- count_creations: the trigger
CREATE TRIGGER instances_added AFTER INSERT ON instances
BEGIN
    UPDATE counters SET value = value + 1 WHERE name = 'instances';
END;

-- count_deletions: the trigger
CREATE TRIGGER instances_removed AFTER DELETE ON instances
BEGIN
    UPDATE counters SET value = value - 1 WHERE name = 'instances';
END;

-- uncount_creations: without it
DROP TRIGGER IF EXISTS instances_added;

-- uncount_deletions: without it
DROP TRIGGER IF EXISTS instances_removed;

-- counted: how many instances there are
SELECT value FROM counters WHERE name = 'instances';

-- measure: the events of some instances that were not measured before
INSERT INTO instance_sizes (instance_id, generation, execution_id, event_count, bytes)
SELECT i.instance_id, i.generation, i.execution_id, i.event_count, coalesce(z.bytes, 0) + (
    SELECT coalesce(sum(length(CAST(h.event AS BLOB))), 0) FROM history AS h
    WHERE h.instance_id = i.instance_id AND h.execution_id = i.execution_id
      AND h.event_id > coalesce(z.event_count, 0) AND h.event_id <= i.event_count)
FROM json_each(:instance_ids) AS j
CROSS JOIN instances AS i ON i.instance_id = j.value
LEFT JOIN instance_sizes AS z
    ON z.instance_id = i.instance_id AND z.generation = i.generation AND z.execution_id = i.execution_id
WHERE z.event_count IS NOT i.event_count
ON CONFLICT (instance_id) DO UPDATE
SET generation = excluded.generation, execution_id = excluded.execution_id, event_count = excluded.event_count,
    bytes = excluded.bytes;

-- sizes: the bytes of some instances: events, and messages that wait and are no timers
SELECT json_group_array(json_array(z.instance_id, z.bytes + (
    SELECT coalesce(sum(length(CAST(q.payload AS BLOB))), 0) FROM orchestrator_queue AS q
    WHERE q.instance_id = z.instance_id AND q.timer_id IS NULL
)))
FROM json_each(:instance_ids) AS j CROSS JOIN instance_sizes AS z ON z.instance_id = j.value;
