-- check_fences: turns, results, states and parts of guests of a refused batch whose fences do not pass; reads only
-- A fence that does not pass never passes later. One that passes here is checked again by the next commit.
SELECT 'turn', t.n
FROM unnest(%(instance)s, %(generation)s, %(execution)s, %(events)s)
     WITH ORDINALITY AS t (instance_id, generation, execution_id, events, n)
WHERE NOT EXISTS (
    SELECT FROM instances i JOIN alive_workers w ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation
    WHERE i.instance_id = t.instance_id
      AND passes_fence(i, %(worker)s, %(incarnation)s, t.generation, t.execution_id, t.events))
UNION ALL
SELECT 'ack', a.n
FROM unnest(%(ack_instance)s, %(ack_execution)s, %(ack_activity)s, %(ack_token)s)
     WITH ORDINALITY AS a (instance_id, execution_id, activity_id, token, n)
WHERE NOT EXISTS (
    SELECT FROM worker_queue q
    WHERE q.instance_id = a.instance_id AND q.execution_id = a.execution_id AND q.activity_id = a.activity_id
      AND q.lock_token = a.token AND q.locked_until > clock())
UNION ALL
SELECT 'state', w.n
FROM unnest(%(state_session)s, %(state_base)s, %(state_epoch)s) WITH ORDINALITY AS w (session_id, base, epoch, n)
LEFT JOIN session_states r ON r.session_id = w.session_id
LEFT JOIN sessions s ON s.session_id = w.session_id
WHERE coalesce(r.version, 0) <> w.base OR (r.epoch > w.epoch) IS TRUE OR (s.epoch > w.epoch) IS TRUE
-- branches of guests
