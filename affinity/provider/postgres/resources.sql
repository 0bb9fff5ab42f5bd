-- begin: the resource that an activity uses: the one that it has, one that an earlier attempt has created, or a new one. An
-- earlier attempt is of the same instance of its id: the beginning of the resource's id says it, or the time, which is not before
-- the activity was queued.
WITH adopted AS (
    UPDATE resources SET
        instance_id = %(instance)s, execution_id = %(execution)s, activity_id = %(activity)s, created_at = clock()
    WHERE resource_id = (
        SELECT r.resource_id FROM (
            SELECT * FROM resources h WHERE h.resource_id = %(held)s AND h.name = %(name)s
            UNION ALL
            SELECT * FROM resources a
            WHERE a.instance_id = %(instance)s AND a.execution_id = %(execution)s AND a.activity_id = %(activity)s
              AND a.name = %(name)s
              AND CASE
                  WHEN a.resource_id LIKE '%%-%%' AND %(resource)s LIKE '%%-%%'
                  THEN split_part(a.resource_id, '-', 1) = split_part(%(resource)s, '-', 1)
                  ELSE NOT EXISTS (
                      SELECT FROM worker_queue q
                      WHERE q.instance_id = a.instance_id AND q.execution_id = a.execution_id
                        AND q.activity_id = a.activity_id AND q.enqueued_at > a.created_at)
                  END) r
        WHERE r.handle IS NOT NULL AND r.taken_until IS NULL
        ORDER BY (r.resource_id = %(held)s) IS NOT TRUE LIMIT 1)
      AND taken_until IS NULL
    RETURNING resource_id, name, handle
), added AS (
    INSERT INTO resources (resource_id, name, instance_id, execution_id, activity_id, created_at)
    SELECT %(resource)s, %(name)s, %(instance)s, %(execution)s, %(activity)s, clock()
    WHERE NOT EXISTS (SELECT FROM adopted)
    ON CONFLICT (resource_id) DO NOTHING
    RETURNING resource_id, name, handle
)
SELECT resource_id, name, handle FROM adopted UNION ALL SELECT resource_id, name, handle FROM added

-- set_handle: it is created
UPDATE resources SET handle = %(handle)s WHERE resource_id = %(resource)s AND taken_until IS NULL RETURNING resource_id

-- get: one that is not being destroyed
SELECT resource_id, name, handle FROM resources
WHERE resource_id = %(resource)s AND handle IS NOT NULL AND taken_until IS NULL

-- unused: no record has it in its labels, its activity is not queued any more, and it is not being destroyed
AND (r.taken_until IS NULL OR r.taken_until <= clock())
AND NOT EXISTS (
    SELECT FROM worker_queue q
    WHERE q.instance_id = r.instance_id AND q.execution_id = r.execution_id AND q.activity_id = r.activity_id)
AND NOT EXISTS (
    SELECT FROM session_states s
    WHERE s.labels <> '{}' AND s.labels @> jsonb_build_object('affinity.resource/' || r.name, r.resource_id))

-- take_unused: resources that nothing uses; in one snapshot
-- First without locks. A row that has changed when it is locked is compared with what was read: PostgreSQL does not look again
-- whether the activity, which then is another one, is queued.
WITH idle AS MATERIALIZED (
    SELECT r.resource_id, r.instance_id, r.execution_id, r.activity_id, r.created_at, r.taken_until FROM resources r
    WHERE r.name = ANY (%(name)s)
    -- include unused
    -- Those that could not be destroyed go behind.
    ORDER BY r.taken_until NULLS FIRST LIMIT %(limit)s
), locked AS MATERIALIZED (
    SELECT r.resource_id FROM idle i JOIN resources r USING (resource_id)
    WHERE (r.instance_id, r.execution_id, r.activity_id, r.created_at) = (i.instance_id, i.execution_id, i.activity_id, i.created_at)
      AND r.taken_until IS NOT DISTINCT FROM i.taken_until
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE resources r SET taken_until = clock() + %(seconds)s * interval '1 s'
FROM locked l WHERE r.resource_id = l.resource_id
RETURNING r.resource_id, r.name, r.handle

-- find_unused: as take_unused, of other names
WITH RECURSIVE named (name) AS (
    SELECT min(name) FROM resources
    UNION ALL
    SELECT (SELECT min(r.name) FROM resources r WHERE r.name > n.name) FROM named n WHERE n.name IS NOT NULL
)
SELECT r.resource_id, r.name, r.handle FROM named n JOIN resources r ON r.name = n.name
WHERE n.name <> ALL (%(name)s)
  -- include unused
LIMIT %(limit)s

-- remove: destroyed resources
DELETE FROM resources WHERE resource_id = ANY (%(resource)s) AND taken_until IS NOT NULL RETURNING resource_id
