-- ended: the instances that ended in the next stretch of time, each once, with whether their parent is there; all that ended
-- at its last moment, so that a time is all that the next step must know
SELECT i.instance_id, e.ended_at,
       i.status IN (SELECT value FROM json_each(:status)) AND i.updated_at < :cutoff AND NOT EXISTS (
           SELECT 1 FROM instances AS p
           WHERE p.instance_id = i.parent_id AND (i.parent_generation IS NULL OR p.generation = i.parent_generation))
FROM ended_executions AS e CROSS JOIN instances AS i ON i.instance_id = e.instance_id
WHERE e.is_last AND e.ended_at > :after AND e.ended_at <= coalesce((
    SELECT ended_at FROM ended_executions
    WHERE is_last AND ended_at > :after AND ended_at < :cutoff
    ORDER BY ended_at LIMIT 1 OFFSET :window - 1), :cutoff)
ORDER BY e.ended_at;

-- measure: an instance with its tree: how many they are, how many events they have, and whether all ended before
WITH RECURSIVE tree (instance_id, generation, ended, event_count) AS (
    SELECT instance_id, generation, status IN ('completed', 'failed', 'cancelled') AND updated_at < :cutoff, event_count
    FROM instances WHERE instance_id = :instance_id
    UNION
    SELECT c.instance_id, c.generation, c.status IN ('completed', 'failed', 'cancelled') AND c.updated_at < :cutoff, c.event_count
    FROM tree AS t CROSS JOIN instances AS c ON c.parent_id = t.instance_id
    WHERE c.parent_generation IS NULL OR c.parent_generation = t.generation
)
SELECT count(*), sum(event_count), min(ended) FROM tree;

-- histories: executions after which another one began
SELECT instance_id, execution_id FROM ended_executions WHERE NOT is_last AND ended_at < :cutoff
ORDER BY ended_at LIMIT :window;

-- count_histories: their number
SELECT count(*) FROM ended_executions WHERE NOT is_last AND ended_at < :cutoff;

-- cut_history: remove the newest events of an execution, so that its beginning is left
DELETE FROM history WHERE (instance_id, execution_id, event_id) IN (
    SELECT instance_id, execution_id, event_id FROM history
    WHERE instance_id = :instance_id AND execution_id = :execution_id ORDER BY event_id DESC LIMIT :events
);

-- forget: an execution without a history
DELETE FROM ended_executions WHERE instance_id = :instance_id AND execution_id = :execution_id;

-- forget_failures: of an execution without a history
DELETE FROM failures WHERE instance_id = :instance_id AND execution_id = :execution_id;

-- pruned_to: where the last sweep stopped
SELECT value FROM counters WHERE name = 'pruned_to';

-- set_pruned: where the next one goes on
UPDATE counters SET value = :after WHERE name = 'pruned_to';
