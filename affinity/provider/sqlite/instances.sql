-- peek: whether the caller is alive, and whether messages of instances that nobody owns are there
SELECT w.draining,
       NOT w.draining AND EXISTS (
           SELECT 1 FROM orchestrator_queue AS q
           JOIN instances AS i ON i.instance_id = q.instance_id
           WHERE q.route = 'new' AND q.visible_at <= :now AND q.id NOT IN (SELECT value FROM json_each(:exclude))
             AND (i.unknown_since IS NULL OR i.unknown_since <= :unknown_before
                  OR CASE WHEN i.version IS NULL THEN i.name ELSE i.name || '@' || i.version END
                     IN (SELECT value FROM json_each(:names)))
       )
FROM workers AS w
WHERE w.worker_id = :worker_id AND w.incarnation = :incarnation AND w.locked_until > :now;

-- next_due: when the next message of an instance of the caller's, or (unless it is draining) of nobody's, is visible
SELECT min(due) FROM (
    SELECT min(visible_at) AS due FROM orchestrator_queue WHERE route = :own AND visible_at > :now
    UNION ALL
    SELECT min(visible_at) FROM orchestrator_queue WHERE route = 'new' AND visible_at > :now AND NOT :draining
);

-- scan: visible messages of one route, oldest first, with the truth about their instances
SELECT i.instance_id, i.execution_id, i.name, i.version, i.event_count, i.claims, i.unknown_since,
       w.worker_id, w.incarnation
FROM orchestrator_queue AS q
JOIN instances AS i ON i.instance_id = q.instance_id
LEFT JOIN workers AS w ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation AND w.locked_until > :now
WHERE q.route = :route AND q.visible_at <= :now AND q.id NOT IN (SELECT value FROM json_each(:exclude))
  AND (:any_name OR w.worker_id = :worker_id OR i.unknown_since IS NULL OR i.unknown_since <= :unknown_before
       OR CASE WHEN i.version IS NULL THEN i.name ELSE i.name || '@' || i.version END
          IN (SELECT value FROM json_each(:names)))
ORDER BY q.visible_at, q.id;

-- messages: what is visible for one instance
SELECT id, payload FROM orchestrator_queue
WHERE instance_id = :instance_id AND visible_at <= :now AND id NOT IN (SELECT value FROM json_each(:exclude))
ORDER BY visible_at, id
LIMIT :limit;

-- take: make an instance the caller's
UPDATE instances SET owner_worker = :worker_id, owner_incarnation = :incarnation, claims = claims + 1
WHERE instance_id = :instance_id;

-- release: free an instance of the caller's; the name of its last owner stays, for people
UPDATE instances SET
    owner_incarnation = NULL,
    unknown_since = CASE WHEN :unknown THEN coalesce(unknown_since, :now) ELSE unknown_since END
WHERE instance_id = :instance_id AND owner_worker = :worker_id AND owner_incarnation = :incarnation;

-- hand_over: give an instance to another worker, if that one is alive and stays
UPDATE instances SET owner_worker = w.worker_id, owner_incarnation = w.incarnation
FROM workers AS w
WHERE instances.instance_id = :instance_id
  AND w.worker_id = :heir AND w.locked_until > :now AND NOT w.draining;

-- history: events of one execution, oldest first
SELECT event FROM history WHERE instance_id = :instance_id AND execution_id = :execution_id ORDER BY event_id;
