-- of_page: the instances of a page by status, with the place of the last of them, newest first
SELECT p.status, count(*), last.created_at, last.instance_id
FROM page AS p
CROSS JOIN (
    SELECT listed.created_at, listed.instance_id FROM page AS listed ORDER BY listed.created_at, listed.instance_id LIMIT 1
) AS last
GROUP BY p.status, last.created_at, last.instance_id;

-- columns: of an instance; i is its row, s that of its suspension
SELECT i.instance_id, i.name, i.version, i.execution_id, i.status, i.custom_status, i.output, i.error, i.parent_id,
       i.owner_worker, i.event_count, i.created_at, i.updated_at, i.generation, i.session_id,
       CASE WHEN i.status = 'pending' THEN i.starts_at END, i.next_start ->> 'generation', i.labels, s.error_type, s.message,
       s.suspended_at, s.worker_id, s.code;

-- conditions: of a page
-- [status
  AND i.status IN (SELECT value FROM json_each(:status))
-- status]
-- [name
  AND i.name = :name
-- name]
-- [version
  AND i.version = :version
-- version]
-- [suffix
  AND substr(i.name, -length(:suffix)) = :suffix
-- suffix]
-- [without
  AND NOT EXISTS (SELECT 1 FROM json_each(:without) AS w WHERE substr(i.name, -length(w.value)) = w.value)
-- without]
-- [prefix
  AND substr(i.instance_id, 1, length(:prefix)) = :prefix
-- prefix]
-- [reason
  AND s.error_type = :reason
-- reason]
-- [labels
  AND NOT EXISTS (
      SELECT 1 FROM json_each(:labels) AS w
      WHERE NOT EXISTS (SELECT 1 FROM json_each(i.labels) AS h WHERE h.key = w.key AND h.value = w.value))
-- labels]

-- instances: one page of instances; or one instance
-- Only the parts that a filter needs are run: each stands between `-- [name` and `-- name]`. Part `shown` gives the instances,
-- `counted` their number by status. Parts `newest` and `oldest`: which come first.
-- [counted
WITH page AS MATERIALIZED (
SELECT i.instance_id, i.status, i.created_at
-- counted]
-- [shown
-- include columns
-- shown]
FROM instances AS i
-- [one_status
INDEXED BY instances_by_status
-- one_status]
LEFT JOIN suspensions AS s ON i.status = 'suspended' AND s.instance_id = i.instance_id
-- [instance_id
WHERE i.instance_id = :instance_id
-- instance_id]
-- [newest
WHERE (i.created_at, i.instance_id) < (:after_time, :after_id)
-- newest]
-- [oldest
WHERE (i.created_at, i.instance_id) > (:after_time, :after_id)
-- oldest]
-- [session_id
  AND i.session_id = :session_id
-- session_id]
-- [parent_id
  AND i.parent_id = :parent_id
-- parent_id]
-- [one_status
  AND i.status = :one_status AND i.status IN ('suspended', 'failed', 'cancelled')
-- one_status]
-- [created_since
  AND i.created_at >= :created_since
-- created_since]
-- [created_before
  AND i.created_at < :created_before
-- created_before]
-- [until
-- [newest
  AND (i.created_at, i.instance_id) >= (:until_time, :until_id)
-- newest]
-- [oldest
  AND (i.created_at, i.instance_id) <= (:until_time, :until_id)
-- oldest]
-- until]
-- include conditions
-- [newest
ORDER BY i.created_at DESC, i.instance_id DESC
LIMIT :limit
-- newest]
-- [oldest
ORDER BY i.created_at, i.instance_id
LIMIT :limit
-- oldest]
-- [counted
)
-- include of_page
-- counted]
;

-- past: behind the cursor, by the time of the end
-- [newest
  AND (r.ended_at, r.instance_id) < (:after_time, :after_id)
-- newest]
-- [oldest
  AND (r.ended_at, r.instance_id) > (:after_time, :after_id)
-- oldest]

-- by_end: the order of r by the time of the end
-- [newest
ORDER BY r.ended_at DESC, r.instance_id DESC
-- newest]
-- [oldest
ORDER BY r.ended_at, r.instance_id
-- oldest]

-- list_ended: one page of the instances that have ended, by the time of the end
-- Part `most`: only so many of the first are looked at. Parts `longest` and `shortest`: by the seconds from start to end, of those that
-- ended last.
-- include columns
FROM (
    SELECT r.instance_id, r.ended_at FROM ended_executions AS r INDEXED BY ended_instances
    WHERE r.is_last
-- [all
-- include past
-- all]
-- include by_end
-- [most
    LIMIT :most
-- most]
) AS r
CROSS JOIN instances AS i ON i.instance_id = r.instance_id
LEFT JOIN suspensions AS s ON i.status = 'suspended' AND s.instance_id = i.instance_id
WHERE i.status IN ('completed', 'failed', 'cancelled')
-- [session_id
  AND i.session_id = :session_id
-- session_id]
-- [parent_id
  AND i.parent_id = :parent_id
-- parent_id]
-- [created_since
  AND i.created_at >= :created_since
-- created_since]
-- [created_before
  AND i.created_at < :created_before
-- created_before]
-- include conditions
-- [most
-- include past
-- most]
-- [by_end
-- include by_end
-- by_end]
-- [longest
ORDER BY r.ended_at - coalesce(i.starts_at, i.created_at) DESC, i.instance_id DESC
-- longest]
-- [shortest
ORDER BY r.ended_at - coalesce(i.starts_at, i.created_at), i.instance_id
-- shortest]
LIMIT :limit;

-- labelled: one page of the instances of one phase that have a label
-- Other labels are looked up at the same place in their index, before an instance is read. Part `slim` counts those whose place
-- tells that they fit, part `whole` reads the instances.
-- [counted
WITH page AS MATERIALIZED (
-- [whole
SELECT i.instance_id, i.status, i.created_at
-- whole]
-- [slim
SELECT l.instance_id, l.phase AS status, l.created_at
-- slim]
-- counted]
-- [shown
-- include columns
-- shown]
FROM instance_labels AS l
-- [whole
CROSS JOIN instances AS i ON i.instance_id = l.instance_id
LEFT JOIN suspensions AS s ON i.status = 'suspended' AND s.instance_id = i.instance_id
-- whole]
-- include at_label
-- [newest
  AND (l.created_at, l.instance_id) < (:after_time, :after_id)
-- newest]
-- [oldest
  AND (l.created_at, l.instance_id) > (:after_time, :after_id)
-- oldest]
-- [until
-- [newest
  AND (l.created_at, l.instance_id) >= (:until_time, :until_id)
-- newest]
-- [oldest
  AND (l.created_at, l.instance_id) <= (:until_time, :until_id)
-- oldest]
-- until]
-- [slim
-- [prefix
  AND substr(l.instance_id, 1, length(:prefix)) = :prefix
-- prefix]
-- slim]
-- [whole
-- include conditions
-- whole]
-- [newest
ORDER BY l.created_at DESC, l.instance_id DESC
LIMIT :limit
-- newest]
-- [oldest
ORDER BY l.created_at, l.instance_id
LIMIT :limit
-- oldest]
-- [counted
)
-- include of_page
-- counted]
;

-- at_label: the places of a label l in one phase, in the time of a filter
WHERE l.key = :key AND l.value = :value AND l.phase = :phase
-- [created_since
  AND l.created_at >= :created_since
-- created_since]
-- [created_before
  AND l.created_at < :created_before
-- created_before]
-- [several
  AND NOT EXISTS (
      SELECT 1 FROM json_each(:labels) AS g
      WHERE g.key <> :key AND NOT EXISTS (
          SELECT 1 FROM instance_labels AS o
          WHERE o.key = g.key AND o.value = g.value AND o.phase = :phase AND o.created_at = l.created_at
            AND o.instance_id = l.instance_id))
-- several]

-- first_labelled: the places of the first instances of one phase that have a label
SELECT l.created_at, l.instance_id
FROM instance_labels AS l
-- include at_label
-- [newest
ORDER BY l.created_at DESC, l.instance_id DESC
-- newest]
-- [oldest
ORDER BY l.created_at, l.instance_id
-- oldest]
LIMIT :most;

-- first: the places of the first instances
SELECT first.created_at, first.instance_id
FROM instances AS first
-- [one_status
INDEXED BY instances_by_status
-- one_status]
WHERE
-- [one_status
  first.status = :one_status AND first.status IN ('suspended', 'failed', 'cancelled') AND
-- one_status]
-- [created_since
  first.created_at >= :created_since AND
-- created_since]
-- [created_before
  first.created_at < :created_before AND
-- created_before]
  true
-- [newest
ORDER BY first.created_at DESC, first.instance_id DESC
-- newest]
-- [oldest
ORDER BY first.created_at, first.instance_id
-- oldest]
LIMIT :most;

-- measure_label: how many instances have a label behind a place, in one phase, up to a few, and where the last of these is
SELECT count(*),
-- [newest
       min(few.created_at)
-- newest]
-- [oldest
       max(few.created_at)
-- oldest]
FROM (
    SELECT l.created_at FROM instance_labels AS l
-- include at_label
-- [newest
      AND (l.created_at, l.instance_id) < (:after_time, :after_id)
    ORDER BY l.created_at DESC, l.instance_id DESC
-- newest]
-- [oldest
      AND (l.created_at, l.instance_id) > (:after_time, :after_id)
    ORDER BY l.created_at, l.instance_id
-- oldest]
    LIMIT :few
) AS few;

-- restart: begin a new generation of an ended instance, in its next execution
UPDATE instances SET
    generation = :generation,
    version = :version,
    execution_id = execution_id + 1,
    event_count = 0,
    status = 'pending',
    custom_status = NULL,
    output = NULL,
    error = NULL,
    parent_id = NULL,
    parent_generation = NULL,
    on_deleted = NULL,
    session_id = :session_id,
    owner_incarnation = NULL,
    claims = 0,
    unknown_since = NULL,
    unread = 0,
    value_bytes = 0,
    gate = :gate,
    limited = :limited,
    starts_at = :starts_at,
    waits_since = iif(:starts_at IS NULL, NULL, :now),
    labels = :labels,
    updated_at = :now
WHERE instance_id = :instance_id AND generation = :ended AND name = :name AND status IN ('completed', 'failed', 'cancelled');

-- waiting: since when an instance waits to start, which no worker has taken
SELECT i.waits_since FROM instances AS i
WHERE i.instance_id = :instance_id AND i.generation = :ended AND i.name = :name AND i.status = 'pending' AND i.event_count = 0
  AND i.waits_since IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM workers AS w
      WHERE w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation AND w.locked_until > :now);

-- leave_line: it has no limited gate for a moment, so the guest takes it out of its line
UPDATE instances SET gate = NULL, limited = NULL WHERE instance_id = :instance_id;

-- replace_start: of an instance that waits to start
UPDATE instances SET
    version = :version, session_id = :session_id, gate = :gate, limited = :limited, starts_at = :starts_at, labels = :labels,
    updated_at = :now
WHERE instance_id = :instance_id;

-- replace_messages: of the same instance, the first of which starts it
UPDATE orchestrator_queue SET
    payload = iif(id = first.first_id, :start, payload),
    visible_at = iif(id = first.first_id, :starts_at, max(visible_at, :starts_at)),
    route = CASE WHEN :gate IS NULL THEN 'new' WHEN id = first.first_id THEN 'gate' ELSE 'gated' END
FROM (SELECT min(q.id) AS first_id FROM orchestrator_queue AS q WHERE q.instance_id = :instance_id) AS first
WHERE instance_id = :instance_id;

-- queue_start: one that waits for the end of an instance; it keeps the generation of the one before
UPDATE instances SET next_start = json_set(:next, '$.generation', coalesce(next_start ->> 'generation', :generation))
WHERE instance_id = :instance_id AND generation = :ended AND name = :name AND status IN ('pending', 'running', 'suspended');

-- next_starts: starts that have waited for the end of their instances
SELECT json_group_array(json_array(instance_id, generation, name, next_start)) FROM (
    SELECT instance_id, generation, name, next_start FROM instances
    WHERE next_start IS NOT NULL AND instance_id > '' AND status IN ('completed', 'failed', 'cancelled')
    ORDER BY instance_id LIMIT :most
);

-- forget_next: those that have begun
UPDATE instances SET next_start = NULL WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- tree: an instance, and if asked for its children and theirs, each with its status
WITH RECURSIVE tree (instance_id, generation, status) AS (
    SELECT instance_id, generation, status FROM instances WHERE instance_id = :instance_id
    UNION
    SELECT c.instance_id, c.generation, c.status
    FROM tree AS t CROSS JOIN instances AS c ON c.parent_id = t.instance_id
    WHERE :tree AND (c.parent_generation IS NULL OR c.parent_generation = t.generation)
)
SELECT instance_id, status FROM tree;

-- orphaned: what parents that stay are sent when these instances are deleted
SELECT p.instance_id, p.generation, c.on_deleted
FROM json_each(:instance_ids) AS j
CROSS JOIN instances AS c ON c.instance_id = j.value
CROSS JOIN instances AS p ON p.instance_id = c.parent_id AND p.generation = c.parent_generation
WHERE c.on_deleted IS NOT NULL AND c.status NOT IN ('completed', 'failed', 'cancelled')
  AND p.instance_id NOT IN (SELECT value FROM json_each(:instance_ids));

-- delete_history: all executions of instances
DELETE FROM history WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- delete_ended: the ends of all executions of instances
DELETE FROM ended_executions WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- delete_sizes: the measured sizes of instances
DELETE FROM instance_sizes WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- delete_keys: keys of messages to instances
DELETE FROM message_keys WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- delete_values: the values of instances
DELETE FROM instance_values WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- delete_failures: the failures of instances
DELETE FROM failures WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- delete_instances: the rows themselves
DELETE FROM instances WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- clear_items: all work items of instances
DELETE FROM worker_queue WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- clear_messages: all messages of instances
DELETE FROM orchestrator_queue WHERE instance_id IN (SELECT value FROM json_each(:rows));
