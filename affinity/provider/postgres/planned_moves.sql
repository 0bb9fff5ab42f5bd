-- lock: a claim, a fetch or a commit that has one of these sessions is waited for, and is seen by what follows
SELECT FROM sessions WHERE session_id = ANY (%(session)s) ORDER BY session_id FOR NO KEY UPDATE

-- plan: plan moves of held sessions, and route their items to the workers that will have them
WITH wanted AS MATERIALIZED (
    SELECT m.n, m.session_id, m.target, m.within, m.reason,
        CASE WHEN h.session_id IS NULL THEN 'not_held'
             WHEN h.worker_id = m.target THEN 'at_target'
             WHEN NOT EXISTS (
                 SELECT FROM workers w CROSS JOIN sessions s
                 WHERE w.worker_id = m.target AND w.locked_until > clock() AND NOT w.draining
                   AND s.session_id = m.session_id
                   AND CASE WHEN s.tag IS NULL THEN NOT w.only_tagged ELSE w.tags && ARRAY[s.tag, 'any'] END)
                 THEN 'unavailable'
             WHEN m.within IS NULL AND (
                 (SELECT true FROM planned_moves p WHERE p.session_id = m.session_id)
                 OR (SELECT true FROM worker_queue q WHERE q.session_id = m.session_id LIMIT 1)
                 OR (SELECT true FROM session_holds x
                     WHERE x.session_id = m.session_id AND x.until > clock() LIMIT 1)) THEN 'busy'
             ELSE 'planned' END AS outcome
    FROM unnest(%(session)s::text[], %(target)s::text[], %(within)s::float8[], %(reason)s::text[])
         WITH ORDINALITY AS m (session_id, target, within, reason, n)
    LEFT JOIN held_sessions h ON h.session_id = m.session_id
), planned AS (
    UPDATE sessions s
    SET next_worker = m.target, next_until = clock() + m.within * interval '1 s', next_reason = m.reason
    FROM wanted m WHERE s.session_id = m.session_id AND m.outcome = 'planned'
    RETURNING s.session_id, 'new:' || s.next_worker AS route
), items AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id, p.route
    FROM planned p JOIN worker_queue q ON q.session_id = p.session_id AND q.route <> p.route
    LIMIT %(reroute)s FOR NO KEY UPDATE OF q SKIP LOCKED
), rerouted AS (
    UPDATE worker_queue q SET route = i.route FROM items i
    WHERE q.instance_id = i.instance_id AND q.execution_id = i.execution_id AND q.activity_id = i.activity_id
), result AS (
    SELECT n, outcome FROM wanted ORDER BY n
)
SELECT * FROM result

-- planned: the effects of plan, for `with_shares`
SELECT n, outcome FROM result WHERE outcome = 'planned'

-- take: claim sessions that are to move to the caller, if their holders have no work of them in hand
-- Sent behind `claim_alone` (fetching.sql) and `lock`.
WITH idle AS MATERIALIZED (
    SELECT s.session_id, s.worker_id AS former, row_number() OVER (ORDER BY s.session_id) AS n
    FROM sessions s
    WHERE s.session_id = ANY (%(session)s) AND (s.next_worker = %(worker)s) IS TRUE
      AND (s.next_until <= clock()) IS NOT TRUE
      AND (SELECT true FROM worker_queue q
           WHERE q.session_id = s.session_id AND q.lock_incarnation = s.incarnation AND q.locked_until > clock()
           LIMIT 1) IS NULL
      AND EXISTS (
          SELECT FROM alive_workers
          WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND NOT draining)
), room AS MATERIALIZED (
    SELECT %(max_sessions)s - count(*) AS n FROM sessions s
    WHERE s.worker_id = %(worker)s AND s.incarnation = %(incarnation)s AND s.locked_until > clock()
), taken AS (
    -- A hold lasts at the new holder.
    UPDATE sessions s
    SET worker_id = %(worker)s, incarnation = %(incarnation)s, epoch = nextval('epochs'),
        freed_by = NULL, next_worker = NULL, next_until = NULL, next_reason = NULL,
        locked_until = greatest(clock() + %(session_lock)s * interval '1 s', latest_hold(s.session_id)),
        touched_at = clock()
    FROM idle WHERE s.session_id = idle.session_id AND idle.n <= (SELECT n FROM room)
    RETURNING s.session_id, s.epoch, idle.former
), items AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id FROM worker_queue q
    WHERE q.session_id = ANY (ARRAY (SELECT session_id FROM taken)) AND q.route <> %(route)s
    LIMIT %(reroute)s FOR NO KEY UPDATE OF q SKIP LOCKED
), rerouted AS (
    UPDATE worker_queue q SET route = %(route)s FROM items i
    WHERE q.instance_id = i.instance_id AND q.execution_id = i.execution_id AND q.activity_id = i.activity_id
)
SELECT session_id, epoch, former FROM taken ORDER BY session_id
