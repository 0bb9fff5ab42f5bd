-- Why a session has moved, and where it will go.
ALTER TABLE sessions
    -- Why its lock was ended before its time: a reason of session_moves. NULL once it is claimed again.
    ADD COLUMN freed_by text COLLATE "C",
    -- A planned move: the worker that may take the session from its holder while no work of it runs, until when
    -- (NULL: without end), and the reason that the move will have.
    ADD COLUMN next_worker text COLLATE "C",
    ADD COLUMN next_until timestamptz,
    ADD COLUMN next_reason text COLLATE "C";

-- One row for each change of a session's holder, and for each write without the lease, which ends what its holder has in
-- memory. The new holder adds what the hydrate has cost. An epoch is issued once, and later ones are greater: so it is the
-- key, and the order.
CREATE TABLE session_moves (
    epoch bigint PRIMARY KEY,
    session_id text COLLATE "C" NOT NULL,
    from_worker text COLLATE "C", -- NULL: none before
    to_worker text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    moved_at timestamptz NOT NULL,
    queued integer NOT NULL, -- work items of the session, up to a bound
    hydrate_seconds float8,
    hydrate_bytes bigint
) WITH (fillfactor = 90, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX session_moves_session ON session_moves (session_id, epoch);
CREATE INDEX session_moves_to ON session_moves (to_worker, epoch);
CREATE INDEX session_moves_from ON session_moves (from_worker, epoch) WHERE from_worker IS NOT NULL;
CREATE INDEX session_moves_reason ON session_moves (reason, epoch);

-- Triggers, so that no statement that gives a session to another holder can leave the record out, those of the release
-- before included. Not BEFORE UPDATE: that would lock the row of each session that is touched.
CREATE FUNCTION record_session_move() RETURNS trigger LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    why text := 'new';
BEGIN
    IF TG_OP = 'UPDATE' THEN
        why := CASE
            WHEN NEW.epoch = OLD.epoch THEN NULL
            WHEN NEW.worker_id = OLD.worker_id AND NEW.incarnation = OLD.incarnation THEN
                -- A timeline that begins gives new epochs too; it has ended the leases before.
                (SELECT 'foreign_write' FROM alive_workers w
                 WHERE w.worker_id = OLD.worker_id AND w.incarnation = OLD.incarnation)
            WHEN OLD.worker_id = '' THEN 'new'
            WHEN NEW.worker_id = OLD.next_worker AND OLD.locked_until > clock() AND EXISTS (
                SELECT FROM alive_workers w WHERE w.worker_id = OLD.worker_id AND w.incarnation = OLD.incarnation
            ) THEN OLD.next_reason
            WHEN OLD.freed_by IS NOT NULL THEN OLD.freed_by
            WHEN NEW.worker_id = OLD.worker_id THEN 'restart'
            -- Which of the two has ended first.
            WHEN OLD.locked_until <= clock() THEN coalesce((
                SELECT CASE WHEN w.draining THEN 'drained' -- freed by a worker of the release before
                            WHEN w.locked_until < OLD.locked_until THEN 'lease_expired' END
                FROM workers w WHERE w.worker_id = OLD.worker_id AND w.incarnation = OLD.incarnation
            ), 'idle_expired')
            ELSE 'lease_expired'
        END;
        -- A claim ends the plan; a new start of the holder, whose registration takes what it holds, does not.
        IF NEW.claimed_at <> OLD.claimed_at THEN
            UPDATE sessions SET freed_by = NULL, next_worker = NULL, next_until = NULL, next_reason = NULL
            WHERE session_id = NEW.session_id AND (freed_by IS NOT NULL OR next_worker IS NOT NULL);
        ELSIF NEW.locked_until > OLD.locked_until THEN
            UPDATE sessions SET freed_by = NULL WHERE session_id = NEW.session_id AND freed_by IS NOT NULL;
        END IF;
    END IF;
    IF why IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO session_moves (epoch, session_id, from_worker, to_worker, reason, moved_at, queued)
    VALUES (NEW.epoch, NEW.session_id, CASE WHEN TG_OP = 'UPDATE' THEN nullif(OLD.worker_id, '') END, NEW.worker_id, why,
        clock(), (SELECT count(*) FROM (SELECT FROM worker_queue q WHERE q.session_id = NEW.session_id LIMIT 1000) q))
    ON CONFLICT DO NOTHING; -- after a restore that set the sequence back: no claim fails for that
    RETURN NULL;
END $$;
CREATE TRIGGER session_begun AFTER INSERT ON sessions
FOR EACH ROW WHEN (NEW.worker_id <> '') EXECUTE FUNCTION record_session_move();
-- Fires before `session_moved`, which reads what it has written: triggers fire in the order of their names.
CREATE TRIGGER session_claimed AFTER UPDATE OF epoch ON sessions
FOR EACH ROW WHEN (NEW.epoch <> OLD.epoch OR OLD.freed_by IS NOT NULL OR OLD.next_worker IS NOT NULL) EXECUTE FUNCTION record_session_move();

-- The message is the payload of the watch; a JSON object gets a last member that says where the session is now, and why.
CREATE OR REPLACE FUNCTION tell_watchers() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
    SELECT r.instance_id, r.route, clock(), CASE
        WHEN w.payload LIKE '{%}' THEN left(w.payload, -1) || ',"move":' || json_build_object(
            'worker_id', NEW.worker_id, 'epoch', NEW.epoch, 'reason', (
                SELECT m.reason FROM session_moves m WHERE m.epoch = NEW.epoch)
            ) || '}'
        ELSE w.payload END
    FROM session_watches w JOIN message_routes r USING (instance_id)
    WHERE w.session_id = NEW.session_id;
    RETURN NULL;
END $$;

-- As release_sessions_1, which the release before calls, with the reason of the move that will follow.
CREATE FUNCTION release_sessions_2(_session text[], _reroute bigint) RETURNS text[] LANGUAGE plpgsql AS $$
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
    UPDATE sessions s SET locked_until = clock(), freed_by = 'released' WHERE s.session_id = ANY (idle);
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
