-- suspend: instances of the caller's, at the point of their history that the caller knows; their messages are out of reach
WITH wanted AS MATERIALIZED (
    SELECT i.instance_id, i.name, s.n, s.error_type, s.message, s.code, s.needs_code, i.execution_id, i.event_count
    FROM unnest(%(instance)s, %(generation)s, %(execution)s, %(events)s, %(error_type)s, %(message)s, %(code)s, %(needs_code)s)
         WITH ORDINALITY AS s (instance_id, generation, execution_id, events, error_type, message, code, needs_code, n)
    JOIN instances i USING (instance_id)
    WHERE passes_fence(i, %(worker)s, %(incarnation)s, s.generation, s.execution_id, s.events)
      AND EXISTS (SELECT FROM alive_workers WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s)
    ORDER BY i.instance_id FOR NO KEY UPDATE OF i
), suspended AS (
    UPDATE instances i SET status = 'suspended', owner_incarnation = NULL, updated_at = clock()
    FROM wanted w WHERE i.instance_id = w.instance_id
), remembered AS (
    -- If it was suspended at this point before, this code is added to the versions that have tried.
    INSERT INTO suspensions AS x (instance_id, name, execution_id, event_count, error_type, message, worker_id, code, tried,
        needs_code, suspended_at)
    SELECT instance_id, name, execution_id, event_count, error_type, message, %(worker)s, code, ARRAY[code], needs_code,
        clock()
    FROM wanted ORDER BY instance_id
    ON CONFLICT (instance_id) DO UPDATE
    SET tried = CASE WHEN (x.execution_id, x.event_count) = (excluded.execution_id, excluded.event_count)
                     THEN x.tried || excluded.tried ELSE excluded.tried END,
        name = excluded.name, execution_id = excluded.execution_id, event_count = excluded.event_count, error_type = excluded.error_type,
        message = excluded.message, worker_id = excluded.worker_id, code = excluded.code,
        needs_code = excluded.needs_code, suspended_at = excluded.suspended_at, resumed_at = NULL, unchecked = false
), misplaced AS MATERIALIZED (
    -- A message that is sent at this moment and missed here is found by a fetch, which routes it.
    SELECT o.id FROM wanted w JOIN orchestrator_queue o USING (instance_id) WHERE o.route <> 'suspended'
    ORDER BY o.id FOR NO KEY UPDATE OF o
), rerouted AS (
    UPDATE orchestrator_queue o SET route = 'suspended' FROM misplaced m WHERE o.id = m.id
)
SELECT n FROM wanted

-- resume: suspended instances go on, and may be tried by all; NULL: no instance has this id
WITH wanted AS MATERIALIZED (
    SELECT i.instance_id, i.status = 'suspended' AS suspended FROM instances i WHERE i.instance_id = ANY (%(instance)s)
    ORDER BY i.instance_id FOR NO KEY UPDATE
), resumed AS (
    UPDATE instances i
    SET status = CASE WHEN i.event_count = 0 AND i.execution_id = 1 THEN 'pending' ELSE 'running' END,
        owner_incarnation = NULL, claims = 0, unknown_since = NULL, updated_at = clock()
    FROM wanted w WHERE i.instance_id = w.instance_id AND w.suspended
), closed AS (
    UPDATE suspensions x SET resumed_at = clock(), tried = '{}', unchecked = true
    FROM wanted w WHERE x.instance_id = w.instance_id AND w.suspended
), misplaced AS MATERIALIZED (
    -- A message that is sent at this moment and missed here is found by a sweep.
    SELECT o.id FROM wanted w JOIN orchestrator_queue o USING (instance_id) WHERE w.suspended AND o.route = 'suspended'
    ORDER BY o.id FOR NO KEY UPDATE OF o
), rerouted AS (
    UPDATE orchestrator_queue o SET route = 'new' FROM misplaced m WHERE o.id = m.id
), result AS (
    SELECT instance_id, suspended FROM wanted
)
SELECT * FROM result

-- resumed: the effects of resume, for `with_shares`
SELECT array_position(%(instance)s, instance_id), 'resumed' FROM result WHERE suspended

-- retry: suspended instances that other code may go on with become the caller's, if its code has not tried them
WITH untried AS MATERIALIZED (
    SELECT s.instance_id, s.tried FROM suspensions s JOIN instances i USING (instance_id)
    WHERE s.resumed_at IS NULL AND s.needs_code AND i.status = 'suspended' AND NOT %(code)s = ANY (s.tried)
      AND CASE WHEN i.version IS NULL THEN i.name ELSE i.name || '@' || i.version END = ANY (%(names)s)
      AND EXISTS (
          SELECT FROM alive_workers
          WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND NOT draining)
    ORDER BY s.suspended_at LIMIT %(limit)s
), wanted AS MATERIALIZED (
    SELECT i.instance_id FROM untried u JOIN instances i USING (instance_id)
    WHERE i.status = 'suspended' ORDER BY i.instance_id FOR NO KEY UPDATE OF i SKIP LOCKED
), resumed AS (
    UPDATE instances i
    SET status = CASE WHEN i.event_count = 0 AND i.execution_id = 1 THEN 'pending' ELSE 'running' END,
        owner_worker = %(worker)s, owner_incarnation = %(incarnation)s, claims = 1, unknown_since = NULL,
        updated_at = clock()
    FROM wanted w WHERE i.instance_id = w.instance_id
), closed AS (
    UPDATE suspensions x SET resumed_at = clock(), unchecked = true FROM wanted w WHERE x.instance_id = w.instance_id
), misplaced AS MATERIALIZED (
    SELECT o.id FROM wanted w JOIN orchestrator_queue o USING (instance_id) WHERE o.route = 'suspended'
    ORDER BY o.id FOR NO KEY UPDATE OF o
), rerouted AS (
    UPDATE orchestrator_queue o SET route = %(route)s FROM misplaced m WHERE o.id = m.id
)
SELECT instance_id FROM wanted
