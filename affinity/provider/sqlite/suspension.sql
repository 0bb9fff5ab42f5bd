-- suspend: take an instance of the caller's out of service, at the point of its history that the caller knows
UPDATE instances SET status = 'suspended', owner_incarnation = NULL, updated_at = :now
WHERE instance_id = :instance_id AND generation = :generation AND owner_worker = :worker_id AND owner_incarnation = :incarnation
  AND execution_id = :execution_id AND event_count = :event_count AND status IN ('pending', 'running');

-- remember: why; if it was suspended at this point before, this code is added to the versions that have tried
INSERT INTO suspensions (instance_id, name, execution_id, event_count, error_type, message, worker_id, code, tried, needs_code,
                         suspended_at)
SELECT instance_id, name, :execution_id, :event_count, :error_type, :message, :worker_id, :code, json_array(:code), :needs_code,
       :now
FROM instances WHERE instance_id = :instance_id
ON CONFLICT (instance_id) DO UPDATE SET
    name = excluded.name,
    tried = iif(
        suspensions.execution_id = excluded.execution_id AND suspensions.event_count = excluded.event_count,
        json_insert(iif(json_valid(suspensions.tried), suspensions.tried, '[]'), '$[#]', excluded.code),
        excluded.tried
    ),
    execution_id = excluded.execution_id,
    event_count = excluded.event_count,
    error_type = excluded.error_type,
    message = excluded.message,
    worker_id = excluded.worker_id,
    code = excluded.code,
    needs_code = excluded.needs_code,
    suspended_at = excluded.suspended_at,
    resumed_at = NULL;

-- resume: let a suspended instance go on, without an owner
UPDATE instances SET
    status = iif(event_count = 0 AND execution_id = 1, 'pending', 'running'),
    owner_incarnation = NULL,
    claims = 0,
    unknown_since = NULL,
    updated_at = :now
WHERE instance_id = :instance_id AND status = 'suspended';

-- close: the suspension is over; who has tried is forgotten where an operator says so
UPDATE suspensions SET resumed_at = :now, tried = iif(:forget, '[]', tried) WHERE instance_id = :instance_id;

-- untried: suspended instances that other code may go on with, which the caller registers and its code has not tried; a
-- row whose list is damaged must not fail the statement for all
SELECT s.instance_id
FROM suspensions AS s CROSS JOIN instances AS i ON i.instance_id = s.instance_id
WHERE s.resumed_at IS NULL AND s.needs_code AND i.status = 'suspended'
  AND iif(i.version IS NULL, i.name, i.name || '@' || i.version) IN (SELECT value FROM json_each(:names))
  AND NOT EXISTS (SELECT 1 FROM json_each(iif(json_valid(s.tried), s.tried, '[]')) WHERE value = :code)
ORDER BY s.suspended_at
LIMIT :limit;

-- forget: the suspensions of instances that are deleted
DELETE FROM suspensions WHERE instance_id IN (SELECT value FROM json_each(:rows));
