-- get: instances by id
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
    i.owner_worker, i.event_count, i.created_at, i.updated_at, i.generation, i.session_id, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
FROM instances i LEFT JOIN suspensions s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE i.instance_id = ANY (%(instance)s)

-- list: one page of instances, newest first
-- Part `most`: only so many of the newest ones are looked at; so in the next statement.
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
    i.owner_worker, i.event_count, i.created_at, i.updated_at, i.generation, i.session_id, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
-- [all
FROM instances i
-- all]
-- [most
FROM (
    SELECT o.* FROM instances o
    WHERE (%(since)s::timestamptz IS NULL OR o.created_at >= %(since)s)
      AND (%(before)s::timestamptz IS NULL OR o.created_at < %(before)s)
      AND (%(after_time)s::timestamptz IS NULL OR (o.created_at, o.instance_id) < (%(after_time)s, %(after_id)s))
    ORDER BY o.created_at DESC, o.instance_id DESC LIMIT %(most)s
) i
-- most]
LEFT JOIN suspensions s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE (cardinality(%(status)s) = 0 OR i.status = ANY (%(status)s))
  AND (%(name)s::text IS NULL OR i.name = %(name)s)
  AND (%(prefix)s::text IS NULL OR starts_with(i.instance_id, %(prefix)s))
  AND (%(parent)s::text IS NULL OR i.parent_id = %(parent)s)
  AND (%(reason)s::text IS NULL OR s.error_type = %(reason)s)
  AND (%(session)s::text IS NULL OR i.session_id = %(session)s)
  AND (%(version)s::text IS NULL OR i.version = %(version)s)
  AND (%(since)s::timestamptz IS NULL OR i.created_at >= %(since)s)
  AND (%(before)s::timestamptz IS NULL OR i.created_at < %(before)s)
  AND (%(after_time)s::timestamptz IS NULL OR (i.created_at, i.instance_id) < (%(after_time)s, %(after_id)s))
ORDER BY i.created_at DESC, i.instance_id DESC LIMIT %(limit)s

-- list_rare: the same of statuses that few instances have, by the table of these
SELECT f.* FROM unnest(%(status)s) AS w (status) CROSS JOIN LATERAL (
    SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
        i.owner_worker, i.event_count, i.created_at, i.updated_at, i.generation, i.session_id, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
-- [all
    FROM instances_by_status r
-- all]
-- [most
    FROM (
        SELECT o.* FROM instances_by_status o
        WHERE o.status = w.status
          AND (%(since)s::timestamptz IS NULL OR o.created_at >= %(since)s)
          AND (%(before)s::timestamptz IS NULL OR o.created_at < %(before)s)
          AND (%(after_time)s::timestamptz IS NULL OR (o.created_at, o.instance_id) < (%(after_time)s, %(after_id)s))
        ORDER BY o.created_at DESC, o.instance_id DESC LIMIT %(most)s
    ) r
-- most]
    CROSS JOIN LATERAL (
        SELECT * FROM instances i WHERE i.instance_id = r.instance_id OFFSET 0
    ) i LEFT JOIN LATERAL (
        SELECT * FROM suspensions s WHERE i.status = 'suspended' AND s.instance_id = i.instance_id OFFSET 0
    ) s ON true
    WHERE r.status = w.status
      AND (%(name)s::text IS NULL OR i.name = %(name)s)
      AND (%(prefix)s::text IS NULL OR starts_with(i.instance_id, %(prefix)s))
      AND (%(reason)s::text IS NULL OR s.error_type = %(reason)s)
      AND (%(version)s::text IS NULL OR i.version = %(version)s)
      AND (%(since)s::timestamptz IS NULL OR r.created_at >= %(since)s)
      AND (%(before)s::timestamptz IS NULL OR r.created_at < %(before)s)
      AND (%(after_time)s::timestamptz IS NULL OR (r.created_at, r.instance_id) < (%(after_time)s, %(after_id)s))
    ORDER BY r.created_at DESC, r.instance_id DESC LIMIT %(limit)s
) f
ORDER BY f.created_at DESC, f.instance_id DESC LIMIT %(limit)s

-- delete: instances with all their rows
SELECT root, doomed FROM delete_instances(%(instance)s, %(force)s, %(tree)s)

-- deleted: the effects of delete, for `with_shares`
SELECT array_position(%(instance)s, root), 'deleted' FROM result WHERE doomed
