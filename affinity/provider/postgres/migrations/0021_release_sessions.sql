-- Frees sessions before their time, whichever worker holds them: for each "released"; "busy", if its holder has work of it
-- in hand; or "not_held". A function, so that a commit can do it in the same statement, behind all that it writes.
CREATE FUNCTION release_sessions_1(_session text[], _reroute bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    idle text[];
    busy text[];
BEGIN
    -- A claim, a fetch or a commit that has one of these rows is waited for, and is seen by what follows.
    PERFORM FROM sessions s WHERE s.session_id = ANY (_session) ORDER BY s.session_id FOR NO KEY UPDATE;
    SELECT array_agg(h.session_id) FILTER (WHERE NOT h.is_busy), array_agg(h.session_id) FILTER (WHERE h.is_busy)
    INTO idle, busy
    FROM (
        SELECT h.session_id, EXISTS (
            SELECT FROM worker_queue q
            WHERE q.session_id = h.session_id AND q.lock_incarnation = h.incarnation AND q.locked_until > clock()
        ) AS is_busy
        FROM held_sessions h WHERE h.session_id = ANY (_session)
    ) h;
    UPDATE sessions s SET locked_until = clock() WHERE s.session_id = ANY (idle);
    WITH others AS MATERIALIZED (
        SELECT q.instance_id, q.execution_id, q.activity_id
        FROM worker_queue q
        WHERE q.session_id = ANY (idle) AND q.route <> 'new'
        LIMIT _reroute FOR NO KEY UPDATE OF q SKIP LOCKED
    )
    UPDATE worker_queue q SET route = 'new' FROM others o
    WHERE q.instance_id = o.instance_id AND q.execution_id = o.execution_id AND q.activity_id = o.activity_id;
    RETURN ARRAY(
        SELECT CASE WHEN n.session_id = ANY (idle) THEN 'released' WHEN n.session_id = ANY (busy) THEN 'busy'
               ELSE 'not_held' END
        FROM unnest(_session) WITH ORDINALITY AS n (session_id, k) ORDER BY n.k);
END $$;
