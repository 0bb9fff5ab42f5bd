-- prune: one step of removing instances that ended long ago; how many, and where the next step begins
-- An instance is checked again once its row is locked. One that is locked already is skipped.
WITH RECURSIVE cutoff AS MATERIALIZED (
    SELECT clock() - %(older_than)s * interval '1 s' AS at
), looked AS MATERIALIZED (
    -- With ties, so that a time is all that the next step must know.
    SELECT e.instance_id, e.ended_at FROM ended_executions e
    WHERE e.is_last AND e.ended_at > %(after)s AND e.ended_at < (SELECT at FROM cutoff)
    ORDER BY e.ended_at FETCH FIRST %(window)s ROWS WITH TIES
), tree (root, ended_at, instance_id, generation, status, updated_at, event_count) AS (
    -- A child whose parent is there goes with it.
    SELECT i.instance_id, l.ended_at, i.instance_id, i.generation, i.status::text, i.updated_at, i.event_count
    FROM looked l JOIN instances i USING (instance_id)
    WHERE i.status = ANY (%(status)s) AND NOT EXISTS (
        SELECT FROM instances p
        WHERE p.instance_id = i.parent_id AND (i.parent_generation IS NULL OR p.generation = i.parent_generation))
    UNION
    SELECT t.root, t.ended_at, c.instance_id, c.generation, c.status::text, c.updated_at, c.event_count
    FROM tree t JOIN instances c ON c.parent_id = t.instance_id
    WHERE c.parent_generation IS NULL OR c.parent_generation = t.generation
), due AS MATERIALIZED (
    SELECT t.root, t.ended_at, count(*) AS size, sum(t.event_count) AS events,
        max(t.generation) FILTER (WHERE t.instance_id = t.root) AS generation
    FROM tree t GROUP BY t.root, t.ended_at
    HAVING bool_and(t.status IN ('completed', 'failed', 'cancelled') AND t.updated_at < (SELECT at FROM cutoff))
       AND (%(largest)s::bigint IS NULL OR sum(t.event_count) <= %(largest)s)
), measured AS MATERIALIZED (
    SELECT d.*, sum(d.events + d.size) OVER (ORDER BY d.ended_at, d.root) - d.events - d.size >= %(events)s AS is_later FROM due d
), locked AS MATERIALIZED (
    SELECT i.instance_id FROM measured m JOIN instances i ON i.instance_id = m.root
    WHERE NOT m.is_later AND NOT %(dry_run)s AND i.generation = m.generation AND i.status = ANY (%(status)s)
      AND i.updated_at < (SELECT at FROM cutoff)
    ORDER BY i.instance_id FOR UPDATE OF i SKIP LOCKED
), removed AS MATERIALIZED (
    SELECT root FROM delete_instances(ARRAY (SELECT instance_id FROM locked), false, true) WHERE doomed
    UNION ALL
    SELECT root FROM due WHERE %(dry_run)s
), end_of_step AS MATERIALIZED (
    SELECT min(ended_at) AS at FROM measured WHERE is_later AND NOT %(dry_run)s
), result AS (
    SELECT count(r.root) AS roots, coalesce(sum(d.size), 0)::bigint AS instances,
        CASE WHEN (SELECT at FROM end_of_step) IS NOT NULL
             THEN coalesce((SELECT max(l.ended_at) FROM looked l WHERE l.ended_at < (SELECT at FROM end_of_step)), %(after)s)
             WHEN (SELECT count(*) FROM looked) >= %(window)s THEN (SELECT max(l.ended_at) FROM looked l) END AS next_after
    FROM removed r JOIN due d USING (root)
)
SELECT * FROM result

-- pruned: the effect of prune, for `with_shares`
SELECT 1, 'removed ' || instances FROM result WHERE instances > 0

-- prune_histories: one step of removing the events of executions after which another one began; newest first, so that what
-- is left of one is always its beginning. Keys of messages that are as old go too
WITH due AS MATERIALIZED (
    SELECT e.instance_id, e.execution_id FROM ended_executions e JOIN instances i USING (instance_id)
    WHERE e.instance_id IS NOT NULL -- or one
      AND NOT e.is_last AND e.ended_at < (SELECT clock()) - %(older_than)s * interval '1 s'
    ORDER BY e.ended_at LIMIT %(window)s
    FOR KEY SHARE OF i SKIP LOCKED -- no turn waits for it, but a deletion of the instance does
), doomed AS MATERIALIZED (
    SELECT h.instance_id, h.execution_id, h.event_id
    FROM due d CROSS JOIN LATERAL (
        SELECT h.* FROM history h WHERE h.instance_id = d.instance_id AND h.execution_id = d.execution_id
        ORDER BY h.event_id DESC LIMIT %(events)s
    ) h
    LIMIT %(events)s
), keys AS (
    DELETE FROM message_keys k WHERE (k.instance_id, k.generation, k.key) IN (
        SELECT o.instance_id, o.generation, o.key FROM message_keys o
        WHERE o.instance_id IS NOT NULL -- or one
          AND o.updated_at < (SELECT clock()) - %(older_than)s * interval '1 s'
        ORDER BY o.updated_at LIMIT %(window)s FOR UPDATE SKIP LOCKED)
    RETURNING 1
), removed AS (
    DELETE FROM history h USING doomed d
    WHERE h.instance_id = d.instance_id AND h.execution_id = d.execution_id AND h.event_id = d.event_id
), done AS (
    DELETE FROM ended_executions e USING due d
    WHERE e.instance_id = d.instance_id AND e.execution_id = d.execution_id AND (
        EXISTS (
            SELECT FROM doomed x
            WHERE x.instance_id = d.instance_id AND x.execution_id = d.execution_id AND x.event_id = 1)
        OR NOT EXISTS (
            SELECT FROM history h WHERE h.instance_id = d.instance_id AND h.execution_id = d.execution_id))
    RETURNING e.instance_id, e.execution_id
), forgotten AS (
    DELETE FROM failures f USING done d WHERE f.instance_id = d.instance_id AND f.execution_id = d.execution_id
), result AS (
    SELECT (SELECT count(*) FROM done) AS executions,
        (SELECT count(*) FROM due) >= %(window)s OR (SELECT count(*) FROM doomed) >= %(events)s
            OR (SELECT count(*) FROM keys) >= %(window)s AS limit_reached
)
SELECT * FROM result

-- pruned_histories: the effect of prune_histories, for `with_shares`
SELECT 1, 'removed ' || executions FROM result WHERE executions > 0

-- count_histories: how many executions a removal would take
SELECT count(*) FROM ended_executions
WHERE instance_id IS NOT NULL -- or one
  AND NOT is_last AND ended_at < (SELECT clock()) - %(older_than)s * interval '1 s'

-- set_pruned: where the next sweep goes on
UPDATE sweeps SET pruned_to = coalesce(%(after)s, '-infinity')
