-- peek: whether the caller is draining, how many workers could take instances, and whether messages of instances that
-- without an owner are there
SELECT w.draining,
       (SELECT count(*) FROM workers WHERE locked_until > :now AND NOT draining),
       NOT w.draining AND EXISTS (
           SELECT 1 FROM orchestrator_queue AS q
           CROSS JOIN instances AS i ON i.instance_id = q.instance_id
           WHERE q.route = 'new' AND q.visible_at <= :now AND q.id NOT IN (SELECT value FROM json_each(:exclude))
             AND (i.unknown_since IS NULL
                  OR i.unknown_since <= :unknown_before
                  OR iif(i.version IS NULL, i.name, i.name || '@' || i.version)
                     IN (SELECT value FROM json_each(:names)))
       )
FROM workers AS w
WHERE w.worker_id = :worker_id AND w.incarnation = :incarnation AND w.locked_until > :now;

-- count_unowned: instances with messages and without an owner, up to a limit
SELECT count(*) FROM (
    SELECT DISTINCT instance_id FROM orchestrator_queue
    WHERE route = 'new' AND visible_at <= :now AND id NOT IN (SELECT value FROM json_each(:exclude))
    LIMIT :count
);

-- next_due: when the next message of an instance of the caller's, or (unless it is draining) of one without an owner, is visible
SELECT min(due) FROM (
    SELECT min(visible_at) AS due FROM orchestrator_queue WHERE route = :own AND visible_at > :now
    UNION ALL
    SELECT min(visible_at) FROM orchestrator_queue WHERE route = 'new' AND visible_at > :now AND NOT :draining
);

-- scan: a page of the visible messages of one route, oldest first, with the state of their instances
SELECT json_group_array(json_array(
    instance_id, generation, execution_id, name, version, event_count, claims, unknown_for, worker_id, incarnation, session_id,
    value_bytes, suspended
))
FROM (
    SELECT i.instance_id, i.generation, i.execution_id, i.name, i.version, i.event_count, i.claims,
           :now - i.unknown_since AS unknown_for, w.worker_id, w.incarnation, i.session_id, i.value_bytes,
           i.status = 'suspended' AS suspended
    FROM orchestrator_queue AS q
    CROSS JOIN instances AS i ON i.instance_id = q.instance_id
    LEFT JOIN workers AS w
        ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation AND w.locked_until > :now
    WHERE q.route = :route AND q.visible_at <= :now AND q.id NOT IN (SELECT value FROM json_each(:exclude))
      AND (:any_name OR w.worker_id = :worker_id OR i.unknown_since IS NULL
           OR i.unknown_since <= :unknown_before
           OR iif(i.version IS NULL, i.name, i.name || '@' || i.version) IN (SELECT value FROM json_each(:names)))
    ORDER BY q.visible_at, q.id
    LIMIT :page OFFSET :offset
);

-- messages: visible messages of some instances, in rounds: the first of each, then the second; by visibility, then by arrival
SELECT json_group_array(json_array(instance_id, id))
FROM (
    SELECT q.instance_id, q.id, q.visible_at,
           row_number() OVER (PARTITION BY q.instance_id ORDER BY q.visible_at, q.id) AS place
    FROM json_each(:instance_ids) AS j
    CROSS JOIN orchestrator_queue AS q ON q.instance_id = j.value
    WHERE q.visible_at <= :now AND q.id NOT IN (SELECT value FROM json_each(:exclude))
    ORDER BY place, q.visible_at, q.id
)
WHERE place <= :most;

-- take: make instances the caller's
UPDATE instances SET owner_worker = :worker_id, owner_incarnation = :incarnation, claims = claims + 1
WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- release: free an instance of the caller's; the name of its last owner stays for operators; the claim is not counted
UPDATE instances SET
    owner_incarnation = NULL,
    claims = max(0, claims - 1),
    unknown_since = CASE WHEN :unknown THEN coalesce(unknown_since, :now) ELSE unknown_since END
WHERE instance_id = :instance_id AND owner_worker = :worker_id AND owner_incarnation = :incarnation;

-- hand_over: give an instance to another worker, if that one is alive and stays
UPDATE instances SET owner_worker = w.worker_id, owner_incarnation = w.incarnation
FROM workers AS w
WHERE instances.instance_id = :instance_id
  AND w.worker_id = :heir AND w.locked_until > :now AND NOT w.draining;

-- history: the next events of one execution, oldest first, as many as fit; each with the bytes of all up to it
WITH sized AS MATERIALIZED (
    SELECT event_id, length(CAST(event AS BLOB)) AS size FROM history
    WHERE instance_id = :instance_id AND execution_id = :execution_id AND event_id > :after
    ORDER BY event_id
    LIMIT :page
), summed AS (
    SELECT event_id, size, sum(size) OVER (ORDER BY event_id ROWS UNBOUNDED PRECEDING) AS total FROM sized
)
SELECT json_group_array(json_array(h.event, summed.total))
FROM summed
CROSS JOIN history AS h
    ON h.instance_id = :instance_id AND h.execution_id = :execution_id AND h.event_id = summed.event_id
WHERE summed.total - summed.size < :max_bytes;
