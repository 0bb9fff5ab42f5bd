-- Workers, and the sessions that they hold.

CREATE TABLE workers (
    worker_id text COLLATE "C" PRIMARY KEY,
    incarnation text COLLATE "C" NOT NULL,
    locked_until timestamptz NOT NULL,
    draining boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL,
    labels jsonb NOT NULL,
    capacity integer NOT NULL, -- sessions that it may hold
    sessions integer, -- and holds, as it said last
    -- An operator drains the worker: until it is resumed, each process of its name is draining from its registration on.
    drain_wanted boolean NOT NULL DEFAULT false,
    named boolean NOT NULL DEFAULT true, -- it may return under its name
    -- Which code it runs, since when this version is deployed, and a digest of each function that it has registered.
    app text COLLATE "C" NOT NULL,
    code_version text COLLATE "C" NOT NULL,
    code_since timestamptz NOT NULL,
    tags text[] NOT NULL DEFAULT '{}',
    only_tagged boolean NOT NULL DEFAULT false,
    registered jsonb NOT NULL,
    interfaces text COLLATE "C" NOT NULL DEFAULT '{}' -- JSON Schemas of what these functions take
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0.1);

-- Epochs of all sessions. A sequence knows no snapshot and forgets nothing: a session whose row was removed and recreated
-- never gets an epoch that it had before.
CREATE SEQUENCE epochs AS bigint;

-- locked_until and touched_at are in no index, here and below: extending a lock is a heap-only update.
CREATE TABLE sessions (
    session_id text COLLATE "C" PRIMARY KEY,
    worker_id text COLLATE "C" NOT NULL, -- '': no worker has held it; its record was written without a lease
    incarnation text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    locked_until timestamptz NOT NULL,
    touched_at timestamptz NOT NULL,
    -- Why its lock was ended before its time: a reason of session_moves. NULL once it is claimed again.
    freed_by text COLLATE "C",
    -- A planned move: the worker that may take the session from its holder while no work of it runs, until when
    -- (NULL: without end), and the reason that the move will have.
    next_worker text COLLATE "C",
    next_until timestamptz,
    next_reason text COLLATE "C",
    tag text COLLATE "C" -- of the first work that a worker claimed it for; NULL: without a tag
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX sessions_worker ON sessions (worker_id);
-- The time is in the index so that a fetch reads the moves with a bound, and no offers.
CREATE INDEX sessions_next ON sessions (next_worker, next_until) WHERE next_worker IS NOT NULL;

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
    gap_seconds float8, -- for which no worker held it; NULL: unknown, or there was no holder before
    hydrate_seconds float8,
    hydrate_bytes bigint,
    resource_seconds jsonb NOT NULL DEFAULT '{}' -- of the first load of each resource, by name
) WITH (fillfactor = 90, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX session_moves_session ON session_moves (session_id, epoch);
CREATE INDEX session_moves_to ON session_moves (to_worker, epoch);
CREATE INDEX session_moves_from ON session_moves (from_worker, epoch) WHERE from_worker IS NOT NULL;
CREATE INDEX session_moves_reason ON session_moves (reason, epoch);

-- What keeps a session where it is.
CREATE TABLE session_holds (
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    hold_id integer NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    session_lock double precision NOT NULL, -- seconds; for code that ends the hold without knowing the worker's timeouts
    PRIMARY KEY (instance_id, execution_id, hold_id)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX session_holds_session ON session_holds (session_id, until);
CREATE INDEX session_holds_until ON session_holds (until);

-- Instances that get a message when the session moves.
CREATE TABLE session_watches (
    session_id text COLLATE "C" NOT NULL,
    instance_id text COLLATE "C" NOT NULL,
    payload text NOT NULL,
    PRIMARY KEY (session_id, instance_id)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX session_watches_instance ON session_watches (instance_id);

-- The terms of the contract, each written once. PostgreSQL inlines these views and functions into the statements that use them.
CREATE VIEW alive_workers AS
SELECT worker_id, incarnation, draining, code_version FROM workers WHERE locked_until > clock();

CREATE VIEW held_sessions AS
SELECT s.session_id, s.worker_id, s.incarnation, s.epoch, s.locked_until
FROM sessions s JOIN workers w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation
WHERE s.locked_until > clock() AND w.locked_until > clock();

-- Planned moves that can still happen: their time is not over, and their workers take sessions. Not a part of `held_sessions`:
-- PostgreSQL inlines a view that reads the time in its conditions, but not one that reads it in its columns.
CREATE VIEW planned_moves AS
SELECT s.session_id, s.next_worker, 'new:' || s.next_worker AS route
FROM sessions s JOIN workers n ON n.worker_id = s.next_worker
WHERE (s.next_until <= clock()) IS NOT TRUE AND n.locked_until > clock() AND NOT n.draining;

-- The worker that is to have the next work of a held session, and its route.
CREATE VIEW session_routes AS
SELECT h.session_id, coalesce(m.next_worker, h.worker_id) AS holder, coalesce(m.route, 'w:' || h.worker_id) AS route
FROM held_sessions h LEFT JOIN planned_moves m ON m.session_id = h.session_id;

-- Whether a worker that is alive holds the session. `(…) IS TRUE` matches no index: a session is looked up by its id.
CREATE FUNCTION holds_session(s sessions, _worker text, _incarnation text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT (s.worker_id = _worker) IS TRUE AND s.incarnation = _incarnation AND s.locked_until > clock()
$$;

-- Whether it also gets the session's next work: with a planned move that work is for the other worker.
CREATE FUNCTION keeps_session(s sessions, _worker text, _incarnation text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT holds_session(s, _worker, _incarnation) AND (s.next_worker IS NULL OR s.next_until <= clock())
$$;

-- For each worker (`newer_than`) that does not run the newest version of its app: the live workers of that version, and how many
-- more sessions each may hold. Only workers count whose tags let them take all the work that this one takes.
CREATE VIEW newer_workers AS
SELECT me.worker_id AS newer_than, n.worker_id, n.capacity - held.sessions AS room
FROM workers me
CROSS JOIN LATERAL (
    SELECT w.code_version, w.code_since FROM workers w
    WHERE w.app = me.app AND w.locked_until > clock() AND NOT w.draining
      AND (w.tags @> me.tags OR 'any' = ANY (w.tags)) AND (me.only_tagged OR NOT w.only_tagged)
    ORDER BY w.code_since DESC, w.code_version LIMIT 1
) newest
JOIN workers n ON n.app = me.app AND n.code_version = newest.code_version AND n.locked_until > clock() AND NOT n.draining
    AND (n.tags @> me.tags OR 'any' = ANY (n.tags)) AND (me.only_tagged OR NOT n.only_tagged)
CROSS JOIN LATERAL (
    SELECT count(*) AS sessions FROM sessions s
    WHERE s.worker_id = n.worker_id AND s.incarnation = n.incarnation AND s.locked_until > clock()
) held
WHERE newest.code_version <> me.code_version AND newest.code_since > me.code_since;

-- The time since when a version is deployed, for a worker that registers it: the latest time that live workers of the version
-- have, or that the worker's own row has for it; else now. It is now, too, if the worker's row has another version with a later
-- time: the worker changes from that version to this one, so this one is the newer, also in a rollback.
CREATE FUNCTION version_since(_worker text, _app text, _version text) RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN known.since > coalesce(former.since, '-infinity') THEN known.since ELSE clock() END
    FROM (
        SELECT max(w.code_since) AS since FROM workers w
        WHERE w.app = _app AND w.code_version = _version AND (w.worker_id = _worker OR w.locked_until > clock())
    ) known LEFT JOIN (
        SELECT w.code_since AS since FROM workers w
        WHERE w.worker_id = _worker AND w.app = _app AND w.code_version <> _version
    ) former ON true
$$;

-- Whether a worker leaves new and freed sessions to workers of newer code. A function, so that a fetch plans and reads none
-- of this while all workers run one version.
CREATE FUNCTION is_outdated(_worker text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM newer_workers n WHERE n.newer_than = _worker AND n.room > 0);
END $$;

-- The end of the session's last hold, for a statement that has the session's row locked. VOLATILE on purpose: it reads the
-- table as it is now. The snapshot of the statement may be older than the lock, and lack a hold that was added meanwhile.
CREATE FUNCTION latest_hold(session text) RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT max(until) FROM session_holds WHERE session_id = session);
END $$;

-- Whether a worker of the same set and code, with a lower ordinal, has room for a session. Names of one set differ in the
-- number at their end: among them a longer name has the greater number.
-- A function, so that a fetch plans and reads none of this unless it packs.
CREATE FUNCTION lower_worker_has_room(_worker text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM workers me JOIN workers w
            ON rtrim(w.worker_id, '0123456789') = rtrim(me.worker_id, '0123456789')
            AND (length(w.worker_id), w.worker_id) < (length(me.worker_id), me.worker_id)
            AND w.code_version = me.code_version
        WHERE me.worker_id = _worker AND w.locked_until > clock() AND NOT w.draining
          AND w.capacity > (
              SELECT count(*) FROM sessions s
              WHERE s.worker_id = w.worker_id AND s.incarnation = w.incarnation AND s.locked_until > clock()));
END $$;

-- A trigger, so that no statement that gives a session to another holder can leave the record out. Not BEFORE UPDATE: that
-- would lock the row of each session that is touched.
CREATE FUNCTION record_session_move() RETURNS trigger LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    why text := 'new';
    ends timestamptz; -- of the former holder's lease; NULL: that process has no row any more
    gap float8;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        SELECT w.locked_until INTO ends FROM workers w WHERE w.worker_id = OLD.worker_id AND w.incarnation = OLD.incarnation;
        why := CASE
            -- A timeline that begins gives new epochs too; it has ended the leases before.
            WHEN NEW.worker_id = OLD.worker_id AND NEW.incarnation = OLD.incarnation
            THEN CASE WHEN ends > clock() THEN 'foreign_write' END
            WHEN OLD.worker_id = '' THEN 'new'
            WHEN NEW.worker_id = OLD.next_worker AND OLD.locked_until > clock() AND ends > clock() THEN OLD.next_reason
            WHEN OLD.freed_by IS NOT NULL THEN OLD.freed_by
            WHEN NEW.worker_id = OLD.worker_id THEN 'restart'
            WHEN OLD.locked_until > clock() THEN 'lease_expired'
            -- Which of the two has ended first.
            WHEN ends < OLD.locked_until THEN 'lease_expired'
            ELSE 'idle_expired'
        END;
        IF why NOT IN ('new', 'foreign_write') AND (ends IS NOT NULL OR OLD.locked_until <= clock()) THEN
            gap := greatest(0, extract(epoch FROM clock() - least(OLD.locked_until, ends)));
        END IF;
    END IF;
    IF why IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO session_moves (epoch, session_id, from_worker, to_worker, reason, moved_at, queued, gap_seconds)
    VALUES (NEW.epoch, NEW.session_id, CASE WHEN TG_OP = 'UPDATE' THEN nullif(OLD.worker_id, '') END, NEW.worker_id, why,
        clock(), (SELECT count(*) FROM (SELECT FROM worker_queue q WHERE q.session_id = NEW.session_id LIMIT 1000) q), gap)
    ON CONFLICT DO NOTHING; -- after a restore that set the sequence back: no claim fails for that
    RETURN NULL;
END $$;

CREATE TRIGGER session_begun AFTER INSERT ON sessions
FOR EACH ROW WHEN (NEW.worker_id <> '') EXECUTE FUNCTION record_session_move();
CREATE TRIGGER session_claimed AFTER UPDATE OF epoch ON sessions
FOR EACH ROW WHEN (NEW.epoch <> OLD.epoch) EXECUTE FUNCTION record_session_move();
