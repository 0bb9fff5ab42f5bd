-- get: instances by id
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
    i.owner_worker, i.event_count, i.created_at, i.updated_at, i.generation, i.session_id,
    CASE WHEN i.status = 'pending' THEN i.starts_at END, i.next_start::json ->> 'generation', i.labels::text, s.error_type,
    s.message, s.suspended_at, s.worker_id, s.code
FROM instances i LEFT JOIN suspensions s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE i.instance_id = ANY (%(instance)s)

-- of_page: the instances of a page by status, with the place of the last of them, newest first
SELECT p.status, count(*), l.created_at, l.instance_id
-- [whole
FROM page p
-- whole]
-- [slim
FROM (
    SELECT CASE WHEN o.status <> 'open' THEN o.status ELSE (SELECT n.status FROM instances n WHERE n.instance_id = o.instance_id) END AS status
    FROM page o
) p
-- slim]
CROSS JOIN (SELECT q.created_at, q.instance_id FROM page q ORDER BY q.created_at, q.instance_id LIMIT 1) l
GROUP BY p.status, l.created_at, l.instance_id

-- columns: of an instance; i is its row, s that of its suspension
    SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
        i.owner_worker, i.event_count, i.created_at, i.updated_at, i.generation, i.session_id,
        CASE WHEN i.status = 'pending' THEN i.starts_at END, i.next_start::json ->> 'generation', i.labels::text, s.error_type,
        s.message, s.suspended_at, s.worker_id, s.code

-- behind: after the cursor
-- [newest
      AND (%(after_time)s::timestamptz IS NULL OR (r.created_at, r.instance_id) < (%(after_time)s, %(after_id)s))
-- newest]
-- [oldest
      AND (%(after_time)s::timestamptz IS NULL OR (r.created_at, r.instance_id) > (%(after_time)s, %(after_id)s))
-- oldest]

-- within: in the time of a filter
      AND (%(since)s::timestamptz IS NULL OR r.created_at >= %(since)s)
      AND (%(before)s::timestamptz IS NULL OR r.created_at < %(before)s)

-- in_order: of r
-- [newest
    ORDER BY r.created_at DESC, r.instance_id DESC
-- newest]
-- [oldest
    ORDER BY r.created_at, r.instance_id
-- oldest]

-- conditions: of a page, on an instance
      AND (cardinality(%(status)s) = 0 OR i.status = ANY (%(status)s))
      AND (%(prefix)s::text IS NULL OR starts_with(i.instance_id, %(prefix)s))
      AND (%(name)s::text IS NULL OR i.name = %(name)s)
      AND (%(reason)s::text IS NULL OR s.error_type = %(reason)s)
      AND (%(version)s::text IS NULL OR i.version = %(version)s)
-- [suffix
      AND right(i.name, length(%(suffix)s)) = %(suffix)s
-- suffix]
-- [without
      AND NOT EXISTS (SELECT FROM unnest(%(without)s) AS w (suffix) WHERE right(i.name, length(w.suffix)) = w.suffix)
-- without]

-- list: one page of instances
-- Here and in the next statement: part `shown` gives them, `counted` their number by status. Parts `newest` and `oldest`: which come
-- first. Part `most`: only so many of the first are looked at, from the beginning, wherever the page begins.
-- [counted
WITH page AS MATERIALIZED (
SELECT i.instance_id, i.status, i.created_at
-- counted]
-- [shown
-- include columns
-- shown]
-- [all
FROM instances r
-- all]
-- [most
FROM (
    SELECT r.* FROM instances r
    WHERE true
-- include within
-- include in_order
    LIMIT %(most)s
) r
-- most]
CROSS JOIN LATERAL (SELECT r.*) i
LEFT JOIN suspensions s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE true
-- include conditions
      AND (%(labels)s::jsonb IS NULL OR i.labels @> %(labels)s::jsonb)
      AND (%(parent)s::text IS NULL OR i.parent_id = %(parent)s)
      AND (%(session)s::text IS NULL OR i.session_id = %(session)s)
-- include within
-- include behind
-- include in_order
    LIMIT %(limit)s
-- [counted
)
-- include of_page
-- counted]

-- past: behind the cursor, by the time of the end
-- [cursor
-- [newest
      AND r.ended_at <= %(after_time)s AND (r.ended_at, r.instance_id) < (%(after_time)s, %(after_id)s)
-- newest]
-- [oldest
      AND r.ended_at >= %(after_time)s AND (r.ended_at, r.instance_id) > (%(after_time)s, %(after_id)s)
-- oldest]
-- cursor]

-- by_end: the order of r by the time of the end
-- [newest
    ORDER BY r.ended_at DESC, r.instance_id DESC
-- newest]
-- [oldest
    ORDER BY r.ended_at, r.instance_id
-- oldest]

-- list_ended: one page of the instances that have ended, by the time of the end (part `ended`)
-- Part `most`: only so many of the first are looked at. Parts `longest` and `shortest`: by the seconds from start to end, of those that
-- ended last.
-- include columns
FROM (
    SELECT r.instance_id, r.ended_at FROM ended_executions r
    WHERE r.is_last
-- [all
-- include past
-- all]
-- include by_end
-- [most
    LIMIT %(most)s
-- most]
) r
CROSS JOIN LATERAL (SELECT * FROM instances i WHERE i.instance_id = r.instance_id OFFSET 0) i
LEFT JOIN suspensions s ON false
WHERE i.status IN ('completed', 'failed', 'cancelled')
-- include conditions
      AND (%(labels)s::jsonb IS NULL OR i.labels @> %(labels)s::jsonb)
      AND (%(parent)s::text IS NULL OR i.parent_id = %(parent)s)
      AND (%(session)s::text IS NULL OR i.session_id = %(session)s)
      AND (%(since)s::timestamptz IS NULL OR i.created_at >= %(since)s)
      AND (%(before)s::timestamptz IS NULL OR i.created_at < %(before)s)
-- [most
-- include past
-- most]
-- [ended
-- include by_end
-- ended]
-- [longest
    ORDER BY r.ended_at - coalesce(i.starts_at, i.created_at) DESC, i.instance_id DESC
-- longest]
-- [shortest
    ORDER BY r.ended_at - coalesce(i.starts_at, i.created_at), i.instance_id
-- shortest]
    LIMIT %(limit)s

-- groups: what it reads: each of the statuses, or one label in each of the phases
-- Of several labels it is the rarest behind the cursor: with the fewest rows, or else the one whose first `few` reach furthest.
-- [rare
    FROM unnest(%(status)s) AS w (phase)
-- rare]
-- [labelled
    FROM (
        SELECT g.key, g.value FROM jsonb_each_text(%(labels)s::jsonb) AS g (key, value)
-- [several
        CROSS JOIN LATERAL (
            SELECT sum(p.number) AS number,
-- [newest
                max(p.reached) FILTER (WHERE p.number = %(few)s) AS reached
-- newest]
-- [oldest
                min(p.reached) FILTER (WHERE p.number = %(few)s) AS reached
-- oldest]
            FROM unnest(%(phase)s) AS w (phase) CROSS JOIN LATERAL (
                SELECT count(*) AS number,
-- [newest
                    min(r.created_at) AS reached
-- newest]
-- [oldest
                    max(r.created_at) AS reached
-- oldest]
                FROM (
                    SELECT r.created_at FROM instance_labels r
                    WHERE r.key = g.key AND r.value = g.value AND r.phase = w.phase
-- include within
-- include behind
-- include in_order
                    LIMIT %(few)s
                ) r
            ) p
        ) found
-- [newest
        ORDER BY found.reached NULLS FIRST, found.number
-- newest]
-- [oldest
        ORDER BY found.reached DESC NULLS FIRST, found.number
-- oldest]
-- several]
        LIMIT 1
    ) c CROSS JOIN unnest(%(phase)s) AS w (phase)
-- labelled]

-- places: the instances of a group. Other labels are looked up at the same place in their index, before an instance is read
-- Without OFFSET 0 all labels of a phase are hashed, where the planner thinks that they fit into memory.
-- [rare
        SELECT r.created_at, r.instance_id, r.status AS phase FROM instances_by_status r
        WHERE r.status = w.phase
-- rare]
-- [labelled
        SELECT r.created_at, r.instance_id, r.phase FROM instance_labels r
        WHERE r.key = c.key AND r.value = c.value AND r.phase = w.phase
-- [several
      AND NOT EXISTS (
          SELECT FROM jsonb_each_text(%(labels)s::jsonb) AS g (key, value)
          WHERE g.key <> c.key AND NOT EXISTS (
              SELECT FROM instance_labels o
              WHERE o.key = g.key AND o.value = g.value AND o.phase = w.phase AND o.created_at = r.created_at
                AND o.instance_id = r.instance_id OFFSET 0))
-- several]
-- labelled]

-- shape: what a listing gives of the instance at a place r
-- [shown
-- include columns
-- shown]
-- [counted
-- [whole
    SELECT i.instance_id, i.status, i.created_at
-- whole]
-- [slim
    SELECT r.instance_id, r.created_at, r.phase AS status
-- slim]
-- counted]

-- fitting: the instance at a place r, and the conditions of a page on it
-- [whole
    CROSS JOIN LATERAL (
        SELECT * FROM instances i WHERE i.instance_id = r.instance_id OFFSET 0
    ) i LEFT JOIN LATERAL (
        SELECT * FROM suspensions s WHERE i.status = 'suspended' AND s.instance_id = i.instance_id OFFSET 0
    ) s ON true
    WHERE true
-- include conditions
-- whole]
-- [slim
    WHERE (r.phase <> 'open' OR cardinality(%(status)s) = 0
           OR (SELECT n.status = ANY (%(status)s) FROM instances n WHERE n.instance_id = r.instance_id))
      AND (%(prefix)s::text IS NULL OR starts_with(r.instance_id, %(prefix)s))
-- slim]

-- list_indexed: the same by the table of statuses that few instances have (part `rare`), or by that of labels (`labelled`)
-- Part `slim` counts those whose places tell that they fit; it reads the instances of a phase with several statuses. Only the primary
-- key of labels is sure to be read in order for a subselect without a LIMIT.
-- [counted
WITH page AS MATERIALIZED (
SELECT f.instance_id, f.status, f.created_at
-- counted]
-- [shown
SELECT f.*
-- shown]
-- [all
-- include groups
    CROSS JOIN LATERAL (
-- include shape
    FROM (
-- include places
-- include within
-- include behind
-- [labelled
-- include in_order
-- labelled]
    ) r
-- include fitting
-- include in_order
    LIMIT %(limit)s
) f
-- all]
-- [most
FROM (
-- include shape
    FROM (
        SELECT r.*
-- include groups
        CROSS JOIN LATERAL (
-- include places
-- include within
-- include in_order
            LIMIT %(most)s
        ) r
-- include in_order
        LIMIT %(most)s
    ) r
-- include fitting
-- include behind
-- include in_order
    LIMIT %(limit)s
) f
-- most]
-- [newest
ORDER BY f.created_at DESC, f.instance_id DESC LIMIT %(limit)s
-- newest]
-- [oldest
ORDER BY f.created_at, f.instance_id LIMIT %(limit)s
-- oldest]
-- [counted
)
-- include of_page
-- counted]

-- delete: instances with all their rows
SELECT root, doomed FROM delete_instances(%(instance)s, %(force)s, %(tree)s)

-- deleted: the effects of delete, for `with_shares`
SELECT array_position(%(instance)s, root), 'deleted' FROM result WHERE doomed
