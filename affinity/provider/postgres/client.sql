-- create: instances with their start messages
SELECT n, quota, allowed FROM create_instances_1(%(instance)s, %(birth)s, %(name)s, %(version)s, %(start)s, %(parent)s,
    %(parent_birth)s, %(delay)s, %(on_exists)s, %(on_deleted)s, %(session)s)

-- send: messages for instances
SELECT n, delivery FROM send_messages_1(%(instance)s, %(birth)s, %(payload)s, %(delay)s, %(timer_execution)s,
    %(timer_id)s, %(unread_limit)s)

-- get: instances by id
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
    i.owner_worker, i.event_count, i.created_at, i.updated_at, i.birth, i.session_id, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
FROM instances i LEFT JOIN suspensions s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE i.instance_id = ANY (%(instance)s)

-- list: one page of instances, newest first
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
    i.owner_worker, i.event_count, i.created_at, i.updated_at, i.birth, i.session_id, s.error_type, s.message, s.suspended_at, s.worker_id, s.code
FROM instances i LEFT JOIN suspensions s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE (cardinality(%(status)s) = 0 OR i.status = ANY (%(status)s))
  AND (%(name)s::text IS NULL OR i.name = %(name)s)
  AND (%(prefix)s::text IS NULL OR starts_with(i.instance_id, %(prefix)s))
  AND (%(parent)s::text IS NULL OR i.parent_id = %(parent)s)
  AND (%(reason)s::text IS NULL OR s.error_type = %(reason)s)
  AND (%(session)s::text IS NULL OR i.session_id = %(session)s)
  AND (%(after_time)s::timestamptz IS NULL OR (i.created_at, i.instance_id) < (%(after_time)s, %(after_id)s))
ORDER BY i.created_at DESC, i.instance_id DESC LIMIT %(limit)s

-- delete: instances with all their rows
SELECT root, doomed FROM delete_instances_1(%(instance)s, %(force)s, %(tree)s)

-- list_sessions: one page of sessions by id
SELECT s.session_id, s.worker_id, s.incarnation, s.epoch,
    EXISTS (SELECT FROM held_sessions h WHERE h.session_id = s.session_id),
    extract(epoch FROM s.locked_until - clock())::float8, extract(epoch FROM clock() - s.touched_at)::float8,
    (SELECT count(*) FROM worker_queue q WHERE q.session_id = s.session_id)
FROM sessions s WHERE %(after)s::text IS NULL OR s.session_id > %(after)s
ORDER BY s.session_id LIMIT %(limit)s

-- count: rows by kind
SELECT (SELECT count(*) FROM worker_queue), (SELECT count(*) FROM orchestrator_queue), (SELECT count(*) FROM sessions),
    (SELECT count(*) FROM workers), (SELECT count(*) FROM instances)

-- get_quotas: the limits of the database, if there are any
SELECT instances, unread_events, instance_bytes FROM quotas

-- set_quotas: replace them
SELECT set_quotas_1(%(instances)s, %(unread_events)s, %(instance_bytes)s)
