-- The clock, the timeline and the settings of this database.
--
-- Everything lives in the schema that search_path names first, so no statement of this provider names a schema. A function
-- that runs with the owner's rights keeps the search_path of its creation: this schema, and the schema of temporary tables
-- last, since that comes first where it is not named.
SELECT set_config('search_path', quote_ident(current_schema) || ', pg_temp', true);

-- The one clock. PostgreSQL inlines the call, so it costs nothing; tests replace it (PostgresProvider.advance_clock).
-- VOLATILE on purpose: a condition that is checked again after a lock wait reads the time again.
CREATE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT clock_timestamp()';

-- How a statement takes back what it has written so far: errors.py makes it a contention. The message is for the server's
-- log.
CREATE FUNCTION refuse() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'affinity: not every turn of a batch passes; now each is judged by itself' USING ERRCODE = 'ZT001';
END $$;

-- Migrations that were applied: see affinity/provider/schema.py.
CREATE TABLE migrations (
    version integer PRIMARY KEY,
    oldest_code integer NOT NULL,
    release text COLLATE "C" NOT NULL, -- of affinity, that applied it
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Which database this is, and which line of its history: see affinity/provider/timeline.py. One row.
CREATE TABLE timeline (
    token text COLLATE "C" NOT NULL, -- random
    place text COLLATE "C" NOT NULL, -- what PostgreSQL itself said when the token was made
    begun_at timestamptz NOT NULL
);

-- The server, its timeline, the database and the table: a promotion or a recovery to a point in time changes the second,
-- a dump that is restored the last. Services that hide some of it have nothing to find there.
CREATE FUNCTION timeline_place() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    there text := concat_ws('/', (SELECT oid FROM pg_database WHERE datname = current_database()), 'timeline'::regclass::oid);
BEGIN
    RETURN concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
        left(pg_walfile_name(pg_current_wal_lsn()), 8), there);
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN there;
END $$;

-- The position in the write-ahead log that is on disk: no crash takes it back.
CREATE FUNCTION timeline_reached() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN pg_current_wal_flush_lsn() - '0/0'::pg_lsn;
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN 0;
END $$;

-- All ids that can be issued again jump forward, further than they can have come: a microsecond of the clock for each, and by a
-- random part, since a database may be set back to the same moment twice. Every lease ends and every session has a new epoch,
-- so that nothing which a process remembers is taken for the present, whether or not that process knows of timelines.
CREATE FUNCTION begin_timeline() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    begun text := gen_random_uuid();
    far bigint := extract(epoch FROM clock()) * 1000000;
    part bigint := random() * (1::bigint << 32);
BEGIN
    PERFORM setval('epochs', greatest(last_value + (1::bigint << 32), far) + part) FROM epochs;
    PERFORM setval('orchestrator_queue_id_seq', greatest(last_value + (1::bigint << 32), far) + part)
    FROM orchestrator_queue_id_seq;
    PERFORM FROM workers ORDER BY worker_id FOR NO KEY UPDATE;
    UPDATE workers SET locked_until = clock() WHERE locked_until > clock();
    PERFORM FROM sessions ORDER BY session_id FOR NO KEY UPDATE;
    UPDATE sessions SET epoch = nextval('epochs');
    UPDATE timeline SET token = begun, place = timeline_place(), begun_at = clock();
    RETURN begun;
END $$;

-- What each connection asks first: the token, and how far the database is (NULL: it is a standby). With the rights of the
-- role that migrated, so that others need none to the table.
CREATE FUNCTION establish_timeline(known_token text, known_reached bigint, OUT current_token text, OUT reached bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    here text;
    line timeline;
BEGIN
    SELECT * INTO STRICT line FROM timeline;
    current_token := line.token;
    IF pg_is_in_recovery() THEN
        RETURN;
    END IF;
    here := timeline_place();
    reached := timeline_reached();
    IF line.place <> here OR line.token = known_token AND reached < known_reached THEN
        SELECT * INTO STRICT line FROM timeline FOR UPDATE; -- another connection may have been first
        IF line.place <> here OR line.token = known_token AND reached < known_reached THEN
            line.token := begin_timeline();
        END IF;
        current_token := line.token;
    END IF;
END $$;

-- What each connection of a client asks first. A timeline begins here only where the server itself is another one:
-- establish_timeline, to which a number is given, is for workers.
CREATE FUNCTION read_timeline(OUT current_token text, OUT reached bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.current_token, t.reached FROM establish_timeline(NULL, 0) t
$$;

INSERT INTO timeline VALUES (gen_random_uuid(), timeline_place(), clock());

-- Limits of this database, none or one row. NULL: no limit.
CREATE TABLE quotas (
    instances bigint,      -- rows of that table
    unread_events bigint,  -- of one instance
    instance_bytes bigint  -- of one instance: events of its present execution, and messages that wait for it
);

-- Where the sweeps stopped, over all workers; one row. A sweep looks at a part of the rows, and the next one, of any worker,
-- goes on from there: a sweep's cost does not grow with the number of rows. '' is the beginning.
CREATE TABLE sweeps (
    last_sweep timestamptz NOT NULL,
    queued_session text COLLATE "C" NOT NULL DEFAULT '',
    queued_route text COLLATE "C" NOT NULL DEFAULT '',
    session text COLLATE "C" NOT NULL DEFAULT '',
    pruned_to timestamptz NOT NULL DEFAULT '-infinity', -- ended instances
    rebalancing_suspended boolean NOT NULL DEFAULT false -- no worker may offer sessions to others
) WITH (fillfactor = 50);
INSERT INTO sweeps VALUES ('-infinity');

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
    -- Which code it runs, since when this version is deployed, and a digest of each function that it has registered.
    app text COLLATE "C" NOT NULL,
    code_version text COLLATE "C" NOT NULL,
    code_since timestamptz NOT NULL,
    tags text[] NOT NULL DEFAULT '{}',
    only_tagged boolean NOT NULL DEFAULT false,
    registered jsonb NOT NULL
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
    claimed_at timestamptz NOT NULL,
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
    hydrate_seconds float8,
    hydrate_bytes bigint
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

-- The terms of the contract, each written once. PostgreSQL merges them, views and functions, into the statements that use them.
CREATE VIEW alive_workers AS
SELECT worker_id, incarnation, draining, code_version FROM workers WHERE locked_until > clock();

CREATE VIEW held_sessions AS
SELECT s.session_id, s.worker_id, s.incarnation, s.epoch, s.locked_until
FROM sessions s JOIN workers w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation
WHERE s.locked_until > clock() AND w.locked_until > clock();

-- Planned moves that count: until their time, and while their workers take sessions. Beside `held_sessions`, not in it:
-- the time may be read in the conditions of a view, and not in its columns, or PostgreSQL merges it no more.
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

-- The same, and the session's next work is for this worker: with a planned move it is for the other one.
CREATE FUNCTION keeps_session(s sessions, _worker text, _incarnation text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT holds_session(s, _worker, _incarnation) AND (s.next_worker IS NULL OR s.next_until <= clock())
$$;

-- For a worker that does not run the newest version of its app that live workers run: the workers that run it and take all the
-- work that this one takes, and how many more sessions each may hold. Sessions of a tag do not wait for workers without it.
CREATE VIEW newer_workers AS
SELECT me.worker_id AS newer_than, n.worker_id, n.capacity - held.sessions AS room
FROM workers me
CROSS JOIN LATERAL (
    SELECT w.code_version, w.code_since FROM workers w
    WHERE w.app = me.app AND w.locked_until > clock() AND NOT w.draining
      AND w.tags @> me.tags AND (me.only_tagged OR NOT w.only_tagged)
    ORDER BY w.code_since DESC, w.code_version LIMIT 1
) newest
JOIN workers n ON n.app = me.app AND n.code_version = newest.code_version AND n.locked_until > clock() AND NOT n.draining
    AND n.tags @> me.tags AND (me.only_tagged OR NOT n.only_tagged)
CROSS JOIN LATERAL (
    SELECT count(*) AS sessions FROM sessions s
    WHERE s.worker_id = n.worker_id AND s.incarnation = n.incarnation AND s.locked_until > clock()
) held
WHERE newest.code_version <> me.code_version AND newest.code_since > me.code_since;

-- Since when the version is deployed that a worker registers: as long as others run it, or as it ran it before itself. A
-- worker that changes from one version to another shows which of them is the newer: also an older one, rolled back to.
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

-- Asked by a statement that has the session's row locked. VOLATILE on purpose: it looks at the table as it is now,
-- where the statement's own snapshot may be older than the lock, and would miss a hold that was made while it waited.
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
BEGIN
    IF TG_OP = 'UPDATE' THEN
        why := CASE
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
                SELECT 'lease_expired' FROM workers w
                WHERE w.worker_id = OLD.worker_id AND w.incarnation = OLD.incarnation AND w.locked_until < OLD.locked_until
            ), 'idle_expired')
            ELSE 'lease_expired'
        END;
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
CREATE TRIGGER session_claimed AFTER UPDATE OF epoch ON sessions
FOR EACH ROW WHEN (NEW.epoch <> OLD.epoch) EXECUTE FUNCTION record_session_move();

-- Instances, their history and their messages.

-- A CHECK is read and compiled by each statement that updates a row, whichever column it sets. A domain is checked only by
-- statements that set the column.
CREATE DOMAIN instance_status AS text COLLATE "C"
    CHECK (VALUE IN ('pending', 'running', 'suspended', 'completed', 'failed', 'cancelled'));

CREATE TABLE instances (
    instance_id text COLLATE "C" PRIMARY KEY,
    -- Tells two instances of one id apart: part of each fence.
    generation text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version text COLLATE "C",
    execution_id bigint NOT NULL DEFAULT 1,
    status instance_status NOT NULL DEFAULT 'pending',
    custom_status text,
    output text,
    error text,
    parent_id text COLLATE "C",
    parent_generation text COLLATE "C",      -- of the parent as it was when it created the instance
    on_deleted text,                    -- sent to that parent when the instance is deleted before it has ended
    session_id text COLLATE "C",        -- that it was started with; its children have it too
    owner_worker text COLLATE "C",      -- owns it, or did last
    owner_incarnation text COLLATE "C", -- NULL: given up
    claims integer NOT NULL DEFAULT 0,
    event_count integer NOT NULL DEFAULT 0,
    unread integer NOT NULL DEFAULT 0,  -- messages that its turns have consumed and its code has not read
    unknown_since timestamptz,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX instances_created ON instances (created_at, instance_id);
CREATE INDEX instances_parent ON instances (parent_id, created_at) WHERE parent_id IS NOT NULL;
CREATE INDEX instances_session ON instances (session_id, created_at, instance_id) WHERE session_id IS NOT NULL;

-- recorded_*: when and by which worker events were recorded (affinity/provider/rows.py). On the first event of each turn, with
-- the number of events that it stands for; NULL on the others, where it takes no room.
CREATE TABLE history (
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    event_id integer NOT NULL,
    event text NOT NULL,
    recorded_at timestamptz,
    recorded_events integer,
    recorded_by text COLLATE "C",
    run_by text COLLATE "C", -- worker that ran the activity, where it is not the first attempt of the one above
    attempt integer,
    PRIMARY KEY (instance_id, execution_id, event_id)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);

-- Suspended instances: why, since when, and which code has tried. The row stays when the instance is resumed: it tells the
-- code that has tried from the code that has not.
CREATE TABLE suspensions (
    instance_id text COLLATE "C" PRIMARY KEY,
    execution_id bigint NOT NULL, -- where it was suspended: beyond that point, no code has tried
    event_count integer NOT NULL,
    error_type text COLLATE "C" NOT NULL,
    message text NOT NULL,
    worker_id text COLLATE "C" NOT NULL,
    code text COLLATE "C" NOT NULL,
    tried text[] NOT NULL, -- codes; the last is `code`
    needs_code boolean NOT NULL,
    suspended_at timestamptz NOT NULL,
    resumed_at timestamptz, -- NULL: it is suspended
    unchecked boolean NOT NULL DEFAULT false -- resumed, and no sweep has looked yet for messages that came at that moment
);
CREATE INDEX suspensions_open ON suspensions (suspended_at) WHERE resumed_at IS NULL AND needs_code;
CREATE INDEX suspensions_unchecked ON suspensions (resumed_at) WHERE unchecked;
CREATE INDEX suspensions_lasting ON suspensions (suspended_at) WHERE resumed_at IS NULL;

-- Executions that have ended, by the time of their end: with their instance (is_last), or because `continue_as_new` or a
-- reset began another one. Retention goes by this table. A column of `instances` would need an index there, and updates of
-- indexed columns are no heap-only updates.
CREATE TABLE ended_executions (
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    is_last boolean NOT NULL,
    ended_at timestamptz NOT NULL,
    PRIMARY KEY (instance_id, execution_id)
);
CREATE INDEX ended_instances ON ended_executions (ended_at) WHERE is_last;
CREATE INDEX ended_histories ON ended_executions (ended_at) WHERE NOT is_last;

-- Instances of the statuses that few of them have, for listings. A table, since an index of `instances` with the status
-- would keep the first and the last turn of each instance from being heap-only updates.
CREATE TABLE instances_by_status (
    status text COLLATE "C" NOT NULL, -- suspended, failed, cancelled
    created_at timestamptz NOT NULL,
    instance_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (status, created_at, instance_id)
);

-- How many instances there are, in parts, so that transactions which create some at the same time do not wait for each
-- other. Kept by triggers that exist while there is a quota of instances.
CREATE TABLE instance_counts (
    part integer PRIMARY KEY,
    instances bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

-- How many bytes the first events of an execution have, so that each event is measured once. Only while there is a quota.
CREATE TABLE instance_sizes (
    instance_id text COLLATE "C" PRIMARY KEY,
    generation text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    event_count integer NOT NULL,
    bytes bigint NOT NULL
) WITH (fillfactor = 70);

-- Keys of messages, so that an instance gets one message of each, and the replies to these messages. They are removed with
-- their instance, or when they are old (`prune_histories`).
CREATE TABLE message_keys (
    instance_id text COLLATE "C" NOT NULL,
    generation text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    reply text,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (instance_id, generation, key)
) WITH (fillfactor = 80);
CREATE INDEX message_keys_age ON message_keys (updated_at);

-- Resources that outlive a process: see `ResourceStore` in affinity/records.py. What uses one is in the labels of records.
-- The activity is the one that began it, or uses it without a committed result. handle: NULL until it is created.
-- taken_until: it is being destroyed; NULL: it is not.
CREATE TABLE resources (
    resource_id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    activity_id bigint NOT NULL,
    handle text,
    taken_until timestamptz,
    created_at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX resources_activity ON resources (instance_id, execution_id, activity_id, name);
CREATE INDEX resources_name ON resources (name, created_at);

-- The route of a message for an instance: to its owner, to any worker, or nowhere for now. Ended instances take none.
CREATE VIEW message_routes AS
SELECT i.instance_id, i.generation,
    CASE WHEN i.status = 'suspended' THEN 'suspended' ELSE coalesce('w:' || w.worker_id, 'new') END AS route
FROM instances i
LEFT JOIN alive_workers w ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation
WHERE i.status IN ('pending', 'running', 'suspended');

-- Messages for instances, and work items for workers.

-- Rows of the queues live for milliseconds: vacuum them by number, not by share of a table that is mostly empty.
CREATE TABLE orchestrator_queue (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    instance_id text COLLATE "C" NOT NULL,
    route text COLLATE "C" NOT NULL,
    visible_at timestamptz NOT NULL,
    payload text NOT NULL,
    timer_execution bigint,
    timer_id integer
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX orchestrator_queue_route ON orchestrator_queue (route, visible_at);
-- With the timer, so that one of a thousand timers of an instance is found directly.
CREATE INDEX orchestrator_queue_instance ON orchestrator_queue (instance_id, timer_execution, timer_id);

-- route: 'w:W' of the holder W of its session, 'new:W' of a worker W to which the session moves, 'new' of a session without a
-- holder, 'free' without a session; 'new#TAG' and 'free#TAG' with a tag, which only workers with the tag read, so each fetch
-- reads one range of the index for each tag; 'blocked' behind another item in its session's order.
CREATE TABLE worker_queue (
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    activity_id integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    session_id text COLLATE "C",
    route text COLLATE "C" NOT NULL,
    visible_at timestamptz NOT NULL,
    payload text NOT NULL,
    lock_worker text COLLATE "C",
    lock_incarnation text COLLATE "C",
    lock_token text COLLATE "C",
    locked_until timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    last_error text, -- of the failure before, for people
    unknown_since timestamptz,
    -- What a worker must have among its names, beside the item's own, to be given an item that was given back as unknown.
    needs text COLLATE "C",
    enqueued_at timestamptz NOT NULL,
    -- The session in whose order an item stands, and its place there; NULL: it is not ordered. Only the first one has its
    -- session in session_id, and a route that fetches read. The items behind it are `blocked`, and have no session_id, so
    -- that no statement which looks for the items of a session finds them.
    order_session text COLLATE "C",
    order_number bigint,
    tag text COLLATE "C",
    -- Seconds that it waits for a slot of the holder of its session before another worker may take the session over, and
    -- before it fails; since when it waits, and when that has to be checked. NULL: as long as it takes.
    takeover_after float8,
    fail_after float8,
    waits_since timestamptz,
    attend_at timestamptz,
    PRIMARY KEY (instance_id, execution_id, activity_id)
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX worker_queue_route ON worker_queue (route, visible_at);
CREATE INDEX worker_queue_session ON worker_queue (session_id, route) WHERE session_id IS NOT NULL;
CREATE INDEX worker_queue_order ON worker_queue (order_session, order_number) WHERE order_session IS NOT NULL;
CREATE INDEX worker_queue_attend ON worker_queue (attend_at) WHERE attend_at IS NOT NULL;

-- Work items that are parked until an input of their journal queues them: see `NewWorkItem.parked`. In a table of their own,
-- so no statement on the queue reads them. One row for an instance, written again and again in place. parked: it waits for an
-- input; false: it was queued, or cancelled. A row counts for the generation and the execution that it names, and for no other
-- one of its instance. Its journal is the one of the instance's id: a transaction that changes `parked` of a live execution
-- has locked that. So no input is pending while an item is parked.
CREATE TABLE parked_items (
    instance_id text COLLATE "C" PRIMARY KEY,
    generation text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    activity_id integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    session_id text COLLATE "C",
    payload text NOT NULL,
    parked boolean NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

-- Visible, and not locked by a live worker. The first condition reads the time once, so that an index serves it.
CREATE VIEW deliverable_items AS
SELECT q.* FROM worker_queue q
WHERE q.visible_at <= (SELECT clock())
  AND (q.lock_token IS NULL OR q.locked_until <= clock() OR NOT EXISTS (
      SELECT FROM workers w
      WHERE w.worker_id = q.lock_worker AND w.incarnation = q.lock_incarnation AND w.locked_until > clock()));

-- How many workers the sessions need, for what starts and ends workers: one row. Work without a session is not counted,
-- nor is how much of it waits: more workers do not make one session faster. Sessions are counted by worker in one pass, before
-- their workers are looked up.
CREATE VIEW desired_workers AS
SELECT d.held, d.waiting, d.capacity::float8, ceil((d.held + d.waiting) / d.capacity)::integer AS desired
FROM (
    SELECT (
        SELECT coalesce(sum(h.sessions), 0)::bigint FROM (
            SELECT s.worker_id, s.incarnation, count(*) AS sessions
            FROM sessions s WHERE s.locked_until > (SELECT clock())
            GROUP BY s.worker_id, s.incarnation
        ) h JOIN workers w ON w.worker_id = h.worker_id AND w.incarnation = h.incarnation
        WHERE w.locked_until > clock()
    ) AS held, (
        -- Sessions with work, and without a holder. The routes are the ones of any worker, with and without an offer, and
        -- of workers that died: where none is left, no sweep changes them.
        SELECT count(DISTINCT q.session_id)
        FROM (
            SELECT session_id, visible_at FROM worker_queue WHERE route >= 'new' AND route < 'new;'
            UNION ALL
            SELECT q.session_id, q.visible_at
            FROM workers w JOIN worker_queue q ON q.route = 'w:' || w.worker_id
            WHERE w.locked_until <= clock()
        ) q
        WHERE q.visible_at <= (SELECT clock())
          AND NOT EXISTS (SELECT FROM held_sessions h WHERE h.session_id = q.session_id)
    ) AS waiting, coalesce(
        -- The mean of workers that take sessions now; else of workers that did last; else the option's default.
        (SELECT avg(w.capacity) FROM workers w WHERE w.capacity > 0 AND w.locked_until > clock() AND NOT w.draining),
        (SELECT avg(w.capacity) FROM workers w WHERE w.capacity > 0),
        100
    ) AS capacity
) d;

-- Adds the tag to a route that any worker would read, and to an offer to a worker without the tag. A session's own tag
-- decides, once work has given it one: also for an item without a tag, and for one with another tag, which the holder
-- refuses. A trigger, so that it holds for every statement.
CREATE FUNCTION tag_route() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    _tag text := NEW.tag;
    _begun boolean;
BEGIN
    IF NEW.session_id IS NOT NULL THEN
        SELECT s.tag, true INTO _tag, _begun FROM sessions s WHERE s.session_id = NEW.session_id AND s.worker_id <> '';
        IF _begun IS NULL THEN
            _tag := NEW.tag;
        END IF;
    END IF;
    -- An offer, or a planned move, to a worker with the tag stands.
    IF _tag IS NOT NULL AND NOT (
        NEW.route > 'new:' AND EXISTS (
            SELECT FROM workers w WHERE w.worker_id = substr(NEW.route, 5) AND _tag = ANY (w.tags)))
    THEN
        NEW.route := CASE WHEN NEW.session_id IS NULL THEN 'free#' ELSE 'new#' END || _tag;
        IF TG_OP = 'UPDATE' AND NEW IS NOT DISTINCT FROM OLD THEN
            RETURN NULL;  -- no change: it is not counted as one
        END IF;
    END IF;
    RETURN NEW;
END $$;

-- An item is queued without a tag (`restrict_items` adds it), possibly of a session that has one.
CREATE TRIGGER worker_queue_tag_new BEFORE INSERT ON worker_queue FOR EACH ROW
WHEN (starts_with(NEW.route, 'new')) EXECUTE FUNCTION tag_route();
CREATE TRIGGER worker_queue_tag BEFORE UPDATE OF route, tag ON worker_queue FOR EACH ROW
WHEN (NEW.route = 'new' OR NEW.route = 'free' AND NEW.tag IS NOT NULL) EXECUTE FUNCTION tag_route();

-- Ordered work items of a session run one after the other, in the order in which they were committed.
-- Locks the orders of sessions, until the end of the transaction, for one that adds to them; NULLs are skipped. Between
-- `instances` and `worker_queue` in the order of locks.
--
-- The advisory lock is for transactions that add. The lock on the last item is for transactions that remove: one that removes
-- the last item waits for us, and then sees the items that we have added behind it; if it is being removed, we wait and look
-- again. A transaction that removes another item sees the last one.
CREATE FUNCTION lock_order(_session text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    lasts bigint;
    locked bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(o.key)
    FROM (
        SELECT DISTINCT hashtextextended('affinity order ' || current_schema() || ' ' || s.id, 0) AS key
        FROM unnest(_session) AS s (id) WHERE s.id IS NOT NULL ORDER BY 1 OFFSET 0) o;
    LOOP
        WITH tail AS MATERIALIZED (
            SELECT s.id, (
                SELECT q.order_number FROM worker_queue q WHERE q.order_session = s.id
                ORDER BY q.order_number DESC LIMIT 1) AS number
            FROM (SELECT DISTINCT id FROM unnest(_session) AS u (id) WHERE id IS NOT NULL) s
        ), item AS MATERIALIZED (
            SELECT FROM tail t JOIN worker_queue q ON q.order_session = t.id AND q.order_number = t.number
            ORDER BY q.instance_id, q.execution_id, q.activity_id FOR KEY SHARE OF q
        )
        SELECT (SELECT count(number) FROM tail), (SELECT count(*) FROM item) INTO lasts, locked;
        EXIT WHEN locked = lasts;
    END LOOP;
END $$;

-- Where new items stand in the orders of their sessions, which are locked: by element, the number, and whether another item
-- is before it. An element that is NULL has no number, and none is before it.
CREATE FUNCTION places_in_order(_session text[], OUT numbers bigint[], OUT blocked boolean[]) LANGUAGE plpgsql AS $$
BEGIN
    SELECT array_agg(p.number ORDER BY p.k), array_agg((p.number > 1) IS TRUE ORDER BY p.k) INTO numbers, blocked
    FROM (
        SELECT s.k, CASE WHEN s.id IS NOT NULL THEN row_number() OVER (PARTITION BY s.id ORDER BY s.k) + coalesce((
            SELECT q.order_number FROM worker_queue q WHERE q.order_session = s.id
            ORDER BY q.order_number DESC LIMIT 1), 0) END AS number
        FROM unnest(_session) WITH ORDINALITY AS s (id, k)) p;
END $$;

-- The condition of a trigger is read and compiled anew by each statement that writes a row of its table: the shorter it is,
-- the less such a statement costs. The functions ask for the rest.
CREATE FUNCTION promote_next() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    following worker_queue;
BEGIN
    IF OLD.route = 'blocked' THEN
        RETURN NULL;
    END IF;
    LOOP
        SELECT q.* INTO following FROM worker_queue q WHERE q.order_session = OLD.order_session
        ORDER BY q.order_number LIMIT 1;
        EXIT WHEN NOT FOUND OR following.route <> 'blocked';
        UPDATE worker_queue q
        SET session_id = q.order_session, route = coalesce(
            (SELECT r.route FROM session_routes r WHERE r.session_id = OLD.order_session), 'new')
        WHERE q.instance_id = following.instance_id AND q.execution_id = following.execution_id
          AND q.activity_id = following.activity_id;
        EXIT WHEN FOUND;
    END LOOP;
    RETURN NULL;
END $$;

CREATE TRIGGER worker_queue_order AFTER DELETE ON worker_queue FOR EACH ROW
WHEN (OLD.order_session IS NOT NULL) EXECUTE FUNCTION promote_next();

-- Restricts items that the same transaction has queued. A function, so that a commit and a reset can do it in their own
-- statement, behind what they write: work without restrictions costs nothing more.
CREATE FUNCTION restrict_items(_instance text[], _execution bigint[], _activity bigint[], _tag text[],
    _takeover float8[], _fail float8[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE worker_queue q
    SET tag = _tag[r.k], takeover_after = _takeover[r.k], fail_after = _fail[r.k],
        waits_since = coalesce(q.locked_until, q.visible_at),
        attend_at = coalesce(q.locked_until, q.visible_at) + least(_takeover[r.k], _fail[r.k]) * interval '1 s'
    FROM unnest(_instance) WITH ORDINALITY AS r (instance_id, k)
    WHERE q.instance_id = r.instance_id AND q.execution_id = _execution[r.k] AND q.activity_id = _activity[r.k]
$$;

-- Leaves items of sessions that were freed to any worker, up to a number of them: sweeps find the others.
CREATE FUNCTION free_items(_session text[], _most bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH others AS MATERIALIZED (
        SELECT q.instance_id, q.execution_id, q.activity_id
        FROM worker_queue q
        WHERE q.session_id = ANY (_session) AND q.route <> 'new'
        LIMIT _most FOR NO KEY UPDATE OF q SKIP LOCKED
    )
    UPDATE worker_queue q SET route = 'new' FROM others o
    WHERE q.instance_id = o.instance_id AND q.execution_id = o.execution_id AND q.activity_id = o.activity_id;
END $$;

-- Frees sessions whose holders are busy, for other workers that take their work and have room; returns the freed ones.
CREATE FUNCTION release_busy(_session text[], _reroute bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    freed text[];
BEGIN
    -- A claim, a fetch or a commit that has one of these rows is waited for, and is seen by what follows.
    PERFORM FROM sessions s WHERE s.session_id = ANY (_session) ORDER BY s.session_id FOR NO KEY UPDATE;
    freed := ARRAY(
        SELECT s.session_id FROM sessions s JOIN held_sessions h ON h.session_id = s.session_id
        WHERE s.session_id = ANY (_session) AND (s.next_worker IS NULL OR s.next_until <= clock())
          AND NOT EXISTS (
              SELECT FROM worker_queue q
              WHERE q.session_id = s.session_id AND q.lock_incarnation = s.incarnation AND q.locked_until > clock())
          AND EXISTS (
              SELECT FROM workers w
              WHERE w.worker_id <> s.worker_id AND w.locked_until > clock() AND NOT w.draining
                AND CASE WHEN s.tag IS NULL THEN NOT w.only_tagged ELSE s.tag = ANY (w.tags) END
                AND w.capacity > (
                    SELECT count(*) FROM sessions x
                    WHERE x.worker_id = w.worker_id AND x.incarnation = w.incarnation AND x.locked_until > clock())));
    UPDATE sessions s SET locked_until = clock(), freed_by = 'holder_busy' WHERE s.session_id = ANY (freed);
    PERFORM free_items(freed, _reroute);
    RETURN freed;
END $$;

-- Frees idle sessions, for other workers, with the reason of the move that will follow; returns the freed ones.
CREATE FUNCTION release_sessions(_session text[], _reroute bigint) RETURNS text[] LANGUAGE plpgsql AS $$
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
    PERFORM free_items(idle, _reroute);
    RETURN ARRAY(
        SELECT CASE WHEN n.session_id = ANY (idle) THEN 'released' WHEN n.session_id = ANY (busy) THEN 'busy'
               ELSE 'not_held' END
        FROM unnest(_session) WITH ORDINALITY AS n (session_id, k) ORDER BY n.k);
END $$;

-- Removes the work items of instances and ends their holds: locks of sessions are cut back to the latest hold that is left.
CREATE FUNCTION end_work(_instance text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ended text[]; locks float8[]; -- sessions whose holds end, and the length of their locks without one
BEGIN
    PERFORM FROM worker_queue q WHERE q.instance_id = ANY (_instance)
    ORDER BY q.instance_id, q.execution_id, q.activity_id FOR UPDATE;
    DELETE FROM worker_queue WHERE instance_id = ANY (_instance);
    SELECT array_agg(h.session_id), array_agg(h.session_lock) INTO ended, locks
    FROM (
        SELECT session_id, max(session_lock) AS session_lock FROM session_holds WHERE instance_id = ANY (_instance)
        GROUP BY session_id) h;
    IF ended IS NOT NULL THEN
        PERFORM FROM sessions s WHERE s.session_id = ANY (ended) ORDER BY s.session_id FOR NO KEY UPDATE;
        DELETE FROM session_holds WHERE instance_id = ANY (_instance);
        UPDATE sessions s
        SET locked_until = least(
            s.locked_until, greatest(clock() + locks[e.k] * interval '1 s', latest_hold(s.session_id)))
        FROM unnest(ended) WITH ORDINALITY AS e (session_id, k) WHERE s.session_id = e.session_id;
    END IF;
END $$;

-- What removes rows of sessions looks for watches with the snapshot of its statement, which may be older than its locks:
-- it would miss a watch whose commit had the row locked until then. So a trigger judges each row once more when it is locked;
-- with a path of its own, for an administrator's deletion too.
CREATE FUNCTION keep_watched_session() RETURNS trigger LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM session_watches w WHERE w.session_id = OLD.session_id;
    RETURN CASE WHEN NOT FOUND THEN OLD END;
END $$;

-- The message is the payload of the watch; a JSON object gets a last member that says where the session is now, and why.
CREATE FUNCTION notify_watchers() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
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

-- Triggers fire in the order of their names: `session_moved` reads what `session_claimed` has written.
CREATE TRIGGER session_moved AFTER UPDATE OF worker_id, incarnation ON sessions
FOR EACH ROW WHEN (OLD.worker_id <> '' AND (OLD.worker_id <> NEW.worker_id OR OLD.incarnation <> NEW.incarnation))
EXECUTE FUNCTION notify_watchers();
CREATE TRIGGER session_removed BEFORE DELETE ON sessions
FOR EACH ROW EXECUTE FUNCTION keep_watched_session();

-- Creating, restarting, resetting and deleting instances, and sending messages to them.

-- Creates instances with their start messages, also those beyond a quota: of turns and wakes. If an id was there, the parent is
-- notified, where asked. Returns the positions of the new instances. With `_only`, other positions are left out.
CREATE FUNCTION add_instances(
    _instance text[], _generation text[], _name text[], _version text[], _start text[], _parent text[] = NULL,
    _parent_generation text[] = NULL, _delay float8[] = NULL, _on_exists text[] = NULL, _on_deleted text[] = NULL,
    _session text[] = NULL, _only bigint[] = NULL
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY WITH wanted AS MATERIALIZED (
        SELECT w.instance_id, w.n, row_number() OVER (PARTITION BY w.instance_id ORDER BY w.n) AS copy
        FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, n) WHERE _only IS NULL OR w.n = ANY (_only)
    ), created AS (
        INSERT INTO instances (instance_id, generation, name, version, parent_id, parent_generation, on_deleted, session_id,
            created_at, updated_at)
        SELECT w.instance_id, _generation[w.n], _name[w.n], _version[w.n], _parent[w.n], _parent_generation[w.n],
            _on_deleted[w.n], _session[w.n], (SELECT clock()), (SELECT clock())
        FROM wanted w WHERE w.copy = 1 ORDER BY w.instance_id
        ON CONFLICT (instance_id) DO NOTHING
        RETURNING instance_id
    ), outcome AS MATERIALIZED (
        SELECT w.n, w.instance_id,
            (w.copy = 1 AND w.instance_id IN (SELECT c.instance_id FROM created c)) IS TRUE AS is_new
        FROM wanted w
    ), started AS (
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        SELECT o.instance_id, 'new', (SELECT clock()) + coalesce(_delay[o.n], 0) * interval '1 s', _start[o.n]
        FROM outcome o WHERE o.is_new ORDER BY o.n
    ), reported AS (
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        SELECT r.instance_id, r.route, (SELECT clock()), _on_exists[o.n]
        FROM outcome o JOIN message_routes r ON r.instance_id = _parent[o.n]
        WHERE NOT o.is_new AND _on_exists[o.n] IS NOT NULL
        ORDER BY o.n
    )
    SELECT o.n FROM outcome o WHERE o.is_new;
END $$;

-- The writes of a client, with the rights of the role that migrated: a client needs none to any table for them, and writes
-- nothing else.

-- Creates instances as `add_instances`; or, when a quota refuses the batch, none, and returns one row that names it.
CREATE FUNCTION create_instances(
    _instance text[], _generation text[], _name text[], _version text[], _start text[], _parent text[] = NULL,
    _parent_generation text[] = NULL, _delay float8[] = NULL, _on_exists text[] = NULL, _on_deleted text[] = NULL,
    _session text[] = NULL, _only bigint[] = NULL
) RETURNS TABLE (n bigint, quota text, allowed bigint) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    most quotas;
    added bigint;
BEGIN
    SELECT * INTO most FROM quotas;
    IF most.instance_bytes < (
        SELECT max(octet_length(s.start)) FROM unnest(_start) WITH ORDINALITY AS s (start, k)
        WHERE _only IS NULL OR s.k = ANY (_only)) THEN
        RETURN QUERY SELECT NULL::bigint, 'instance_bytes', most.instance_bytes;
        RETURN;
    ELSIF most.instances IS NOT NULL THEN
        SELECT count(DISTINCT w.instance_id) INTO added FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k)
        WHERE (_only IS NULL OR w.k = ANY (_only))
          AND NOT EXISTS (SELECT FROM instances i WHERE i.instance_id = w.instance_id);
        IF added > 0 AND added + (SELECT sum(c.instances) FROM instance_counts c) > most.instances THEN
            RETURN QUERY SELECT NULL::bigint, 'instances', most.instances;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT a.k, NULL::text, NULL::bigint FROM add_instances(
        _instance, _generation, _name, _version, _start, _parent, _parent_generation, _delay, _on_exists, _on_deleted,
        _session, _only) AS a (k);
END $$;

-- Restarts ended instances: each goes on in its next execution, as a new generation with its start message; the history
-- of the former one stays. Returns the positions of the instances that were in the generation `_ended`, of this name, and had
-- ended; or, when a quota refuses the batch, one row that names it.
CREATE FUNCTION restart_instances(
    _instance text[], _ended text[], _generation text[], _name text[], _version text[], _start text[], _session text[]
) RETURNS TABLE (n bigint, quota text, allowed bigint) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    most bigint;
BEGIN
    SELECT q.instance_bytes INTO most FROM quotas q;
    IF most < (SELECT max(octet_length(s.start)) FROM unnest(_start) AS s (start)) THEN
        RETURN QUERY SELECT NULL::bigint, 'instance_bytes', most;
        RETURN;
    END IF;
    FOR n IN SELECT w.k FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k) ORDER BY w.instance_id, w.k LOOP
        UPDATE instances i
        SET generation = _generation[n], version = _version[n], execution_id = i.execution_id + 1, event_count = 0,
            status = 'pending', custom_status = NULL, output = NULL, error = NULL, parent_id = NULL,
            parent_generation = NULL, on_deleted = NULL, session_id = _session[n], owner_incarnation = NULL, claims = 0,
            unknown_since = NULL, unread = 0, updated_at = clock()
        WHERE i.instance_id = _instance[n] AND i.generation = _ended[n] AND i.name = _name[n]
          AND i.status IN ('completed', 'failed', 'cancelled');
        CONTINUE WHEN NOT FOUND;
        -- What was sent while the former generation ended is not for this one.
        PERFORM end_work(ARRAY[_instance[n]]);
        DELETE FROM session_watches w WHERE w.instance_id = _instance[n];
        DELETE FROM orchestrator_queue q WHERE q.instance_id = _instance[n];
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        VALUES (_instance[n], 'new', clock(), _start[n]);
        RETURN NEXT;
    END LOOP;
END $$;

-- Brings `instance_sizes` up to date, for a quota of bytes.
CREATE FUNCTION measure_instances(_instance text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO instance_sizes AS s (instance_id, generation, execution_id, event_count, bytes)
    SELECT i.instance_id, i.generation, i.execution_id, i.event_count, coalesce(z.bytes, 0) + (
        SELECT coalesce(sum(octet_length(h.event)), 0) FROM history h
        WHERE h.instance_id = i.instance_id AND h.execution_id = i.execution_id
          AND h.event_id > coalesce(z.event_count, 0) AND h.event_id <= i.event_count)
    FROM (SELECT DISTINCT w.instance_id FROM unnest(_instance) AS w (instance_id) ORDER BY w.instance_id) w
    JOIN instances i ON i.instance_id = w.instance_id
    LEFT JOIN instance_sizes z
        ON z.instance_id = i.instance_id AND z.generation = i.generation AND z.execution_id = i.execution_id
    WHERE z.event_count IS DISTINCT FROM i.event_count
    ON CONFLICT (instance_id) DO UPDATE
    SET generation = excluded.generation, execution_id = excluded.execution_id, event_count = excluded.event_count,
        bytes = excluded.bytes;
END $$;

-- The bytes of a measured instance: of its events, and of its messages that are no timers. NULL: the limit was lifted meanwhile.
-- A function, so that statements plan and read none of this while there is no quota.
CREATE FUNCTION instance_bytes(_instance text, _generation text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT z.bytes FROM instance_sizes z WHERE z.instance_id = _instance AND z.generation = _generation) + (
        SELECT coalesce(sum(octet_length(q.payload)), 0) FROM orchestrator_queue q
        WHERE q.instance_id = _instance AND q.timer_execution IS NULL);
END $$;

-- Sends messages, and returns the delivery of each. With `_only`, messages in other positions are left out.
CREATE FUNCTION send_messages(
    _instance text[], _generation text[], _payload text[], _delay float8[] = NULL, _timer_execution bigint[] = NULL,
    _timer_id bigint[] = NULL, _unread_limit bigint[] = NULL, _only bigint[] = NULL
) RETURNS TABLE (n bigint, delivery text) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    most quotas;
BEGIN
    SELECT * INTO most FROM quotas;
    IF most.instance_bytes IS NOT NULL THEN
        PERFORM measure_instances(ARRAY (
            SELECT w.instance_id FROM unnest(_instance, _unread_limit) AS w (instance_id, unread_limit)
            WHERE w.unread_limit IS NOT NULL));
    END IF;
    RETURN QUERY WITH message AS MATERIALIZED (
        SELECT m.n, m.instance_id, r.route,
            CASE WHEN m.unread_limit IS NOT NULL THEN i.unread + (
                SELECT count(*) FROM (
                    SELECT FROM orchestrator_queue q WHERE q.instance_id = m.instance_id AND q.timer_execution IS NULL
                    LIMIT least(m.unread_limit, most.unread_events)
                ) unread
            ) + row_number() OVER (PARTITION BY m.instance_id, m.unread_limit ORDER BY m.n)
                > least(m.unread_limit, most.unread_events)
            ELSE false END AS is_full,
            (CASE WHEN m.unread_limit IS NOT NULL AND most.instance_bytes IS NOT NULL
             THEN instance_bytes(m.instance_id, i.generation)
                + sum(octet_length(_payload[m.n])) OVER (PARTITION BY m.instance_id ORDER BY m.n) > most.instance_bytes
             END) IS TRUE AS is_over
        FROM unnest(_instance, _generation, _unread_limit) WITH ORDINALITY AS m (instance_id, generation, unread_limit, n)
        JOIN instances i ON i.instance_id = m.instance_id AND (m.generation IS NULL OR i.generation = m.generation)
        LEFT JOIN message_routes r ON r.instance_id = m.instance_id
        WHERE _only IS NULL OR m.n IN (SELECT o.n FROM unnest(_only) AS o (n))
    ), sent AS (
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
        SELECT m.instance_id, m.route, (SELECT clock()) + coalesce(_delay[m.n], 0) * interval '1 s', _payload[m.n],
            _timer_execution[m.n], _timer_id[m.n]
        FROM message m WHERE m.route IS NOT NULL AND NOT m.is_full AND NOT m.is_over
        ORDER BY m.n
    )
    SELECT m.n, CASE WHEN m.route IS NULL THEN 'finished' WHEN m.is_full THEN 'full' WHEN m.is_over THEN 'over_quota'
                     ELSE 'delivered' END
    FROM message m;
END $$;

-- Sends messages as `send_messages`; some have a key. The instances of keyed messages are locked against deletion, so that a
-- deletion removes the new keys too.
CREATE FUNCTION send_keyed_messages(
    _instance text[], _generation text[], _payload text[], _delay float8[], _timer_execution bigint[], _timer_id bigint[],
    _unread_limit bigint[], _key text[]
) RETURNS TABLE (n bigint, delivery text) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    fresh bigint[]; -- messages with a key that their instance has not got yet
    sent bigint[];  -- all messages but the ones whose key is there
BEGIN
    PERFORM FROM instances i
    WHERE i.instance_id = ANY (ARRAY(
        SELECT m.instance_id FROM unnest(_instance, _key) AS m (instance_id, key) WHERE m.key IS NOT NULL))
    ORDER BY i.instance_id FOR KEY SHARE;
    WITH wanted AS MATERIALIZED (
        SELECT m.instance_id, i.generation, m.key, min(m.n) AS n
        FROM unnest(_instance, _generation, _key) WITH ORDINALITY AS m (instance_id, generation, key, n)
        JOIN instances i ON i.instance_id = m.instance_id AND (m.generation IS NULL OR i.generation = m.generation)
        WHERE m.key IS NOT NULL AND i.status NOT IN ('completed', 'failed', 'cancelled')
        GROUP BY m.instance_id, i.generation, m.key
    ), added AS (
        INSERT INTO message_keys (instance_id, generation, key, updated_at)
        SELECT w.instance_id, w.generation, w.key, clock() FROM wanted w ORDER BY w.instance_id, w.key
        ON CONFLICT (instance_id, generation, key) DO NOTHING
        RETURNING instance_id, generation, key
    )
    -- By IN where nothing is joined, here and below: it is looked up by hash. A join of two columns would compare each
    -- with each, since the planner does not know how long they are.
    SELECT coalesce(array_agg(w.n) FILTER (
        WHERE (w.instance_id, w.generation, w.key) IN (SELECT a.instance_id, a.generation, a.key FROM added a)), '{}')
    INTO fresh FROM wanted w;
    SELECT array_agg(m.n) INTO sent
    FROM unnest(_instance, _generation, _key) WITH ORDINALITY AS m (instance_id, generation, key, n)
    WHERE m.key IS NULL OR m.n IN (SELECT f.n FROM unnest(fresh) AS f (n)) OR (
        -- A scalar: one look into the index for each, whatever the planner takes the tables for.
        SELECT k.key FROM message_keys k
        WHERE k.instance_id = m.instance_id AND k.key = m.key AND k.generation = (
            SELECT i.generation FROM instances i
            WHERE i.instance_id = m.instance_id AND (m.generation IS NULL OR i.generation = m.generation))
    ) IS NULL;
    RETURN QUERY WITH message AS MATERIALIZED (
        SELECT m.n, max(m.instance_id) AS instance_id, max(m.key) AS key, max(m.delivery) AS delivery,
            m.n IN (SELECT f.n FROM unnest(fresh) AS f (n)) AS is_first,
            m.n IN (SELECT s.n FROM unnest(sent) AS s (n)) AS is_sent
        FROM (
            SELECT m.n, m.instance_id, m.key, NULL::text AS delivery
            FROM unnest(_instance, _key) WITH ORDINALITY AS m (instance_id, key, n)
            UNION ALL
            SELECT o.n, NULL, NULL, o.delivery
            FROM send_messages(
                _instance, _generation, _payload, _delay, _timer_execution, _timer_id, _unread_limit, coalesce(sent, '{}')) o
        ) m GROUP BY m.n
    ), refused AS ( -- it may be sent again under its key
        DELETE FROM message_keys WHERE ctid = ANY (ARRAY(
            SELECT (
                SELECT k.ctid FROM message_keys k
                WHERE k.instance_id = m.instance_id AND k.key = m.key
                  AND k.generation = (SELECT i.generation FROM instances i WHERE i.instance_id = m.instance_id))
            FROM message m WHERE m.is_first AND m.delivery <> 'delivered'))
    ), answer AS (
        SELECT m.n, CASE
            WHEN m.is_sent THEN m.delivery
            -- As the first of this key, which may be in the same batch.
            ELSE coalesce(nullif(max(m.delivery) FILTER (WHERE m.is_first) OVER of_key, 'delivered'), 'repeated')
            END AS delivery
        FROM message m WINDOW of_key AS (PARTITION BY m.instance_id, m.key)
    )
    SELECT a.n, a.delivery FROM answer a WHERE a.delivery IS NOT NULL;
END $$;

-- The replies of a batch of turns, called behind their commit. Of several to one message the first counts. The key is there
-- unless it was old.
CREATE FUNCTION reply_messages(_instance text[], _generation text[], _key text[], _reply text[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO message_keys AS k (instance_id, generation, key, reply, updated_at)
    SELECT r.instance_id, r.generation, r.key, r.reply, clock()
    FROM (
        SELECT DISTINCT ON (m.instance_id, m.generation, m.key) m.*
        FROM unnest(_instance, _generation, _key, _reply) WITH ORDINALITY AS m (instance_id, generation, key, reply, n)
        ORDER BY m.instance_id, m.generation, m.key, m.n
    ) r
    ON CONFLICT (instance_id, generation, key) DO UPDATE SET reply = excluded.reply, updated_at = excluded.updated_at
    WHERE k.reply IS NULL
$$;

-- Removes messages that turns have consumed. Called behind a commit: an argument of `commit_turns` for them brings all that
-- a turn may remove, and most turns that consume messages remove nothing else.
CREATE FUNCTION consume_messages(_instance text[], _id bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM orchestrator_queue o USING unnest(_instance, _id) AS c (instance_id, id)
    WHERE o.id = c.id AND o.instance_id = c.instance_id;
END $$;

-- Deletes instances, each with its tree of children if asked to, and notifies the parents that stay. All of a tree goes, or
-- nothing of it: what has not ended goes only by force. Returns the instances that there are, and whether they go.
--
-- A turn that is being committed may add a child while we wait for its parent: the tree is read again until it is locked
-- as a whole. Rows are locked in the order that all verbs keep, but for children found late; should that deadlock, the
-- deletion is repeated.
CREATE FUNCTION delete_instances(_instance text[], _force boolean, _tree boolean)
RETURNS TABLE (root text, doomed boolean) LANGUAGE plpgsql AS $$
DECLARE
    roots text[]; members text[]; -- each member of a tree with the instance that was asked for
    before text[] := '{}';
    gone text[];                  -- deleted instances
BEGIN
    LOOP
        WITH RECURSIVE tree (root, instance_id, generation) AS (
            SELECT i.instance_id, i.instance_id, i.generation FROM instances i WHERE i.instance_id = ANY (_instance)
            UNION
            SELECT t.root, c.instance_id, c.generation FROM tree t JOIN instances c ON c.parent_id = t.instance_id
            WHERE _tree AND (c.parent_generation IS NULL OR c.parent_generation = t.generation)
        )
        SELECT array_agg(t.root ORDER BY t.root, t.instance_id), array_agg(t.instance_id ORDER BY t.root, t.instance_id)
        INTO roots, members FROM tree t;
        EXIT WHEN members IS NULL OR members = before;
        PERFORM FROM instances i WHERE i.instance_id = ANY (members) ORDER BY i.instance_id FOR UPDATE;
        before := members;
    END LOOP;
    RETURN QUERY
        SELECT m.root, _force OR bool_and(i.status IN ('completed', 'failed', 'cancelled'))
        FROM unnest(roots, members) AS m (root, instance_id) JOIN instances i USING (instance_id)
        GROUP BY m.root;
    gone := ARRAY (
        SELECT DISTINCT m.instance_id FROM unnest(roots, members) AS m (root, instance_id)
        WHERE _force OR NOT EXISTS (
            SELECT FROM unnest(roots, members) AS o (root, instance_id) JOIN instances i USING (instance_id)
            WHERE o.root = m.root AND i.status NOT IN ('completed', 'failed', 'cancelled')));
    IF gone = '{}' THEN
        RETURN;
    END IF;
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
    SELECT r.instance_id, r.route, clock(), i.on_deleted
    FROM instances i JOIN message_routes r ON r.instance_id = i.parent_id AND r.generation = i.parent_generation
    WHERE i.instance_id = ANY (gone) AND i.status NOT IN ('completed', 'failed', 'cancelled')
      AND i.on_deleted IS NOT NULL AND NOT i.parent_id = ANY (gone);
    DELETE FROM parked_items WHERE instance_id = ANY (gone); -- first: an append that queues one meanwhile has committed by then
    PERFORM end_work(gone);
    DELETE FROM session_watches WHERE instance_id = ANY (gone);
    DELETE FROM orchestrator_queue WHERE instance_id = ANY (gone);
    DELETE FROM history WHERE instance_id = ANY (gone);
    DELETE FROM suspensions WHERE instance_id = ANY (gone);
    DELETE FROM ended_executions WHERE instance_id = ANY (gone);
    DELETE FROM instance_sizes WHERE instance_id = ANY (gone);
    DELETE FROM message_keys WHERE instance_id = ANY (gone);
    DELETE FROM instances_by_status s USING instances i
    WHERE i.instance_id = ANY (gone)
      AND s.status = i.status AND s.created_at = i.created_at AND s.instance_id = i.instance_id;
    DELETE FROM instances WHERE instance_id = ANY (gone);
END $$;

-- Opens an instance again at an earlier point of its history: see `Reset` in affinity/provider/contract.
CREATE FUNCTION reset_instance(
    _instance text, _generation text, _execution bigint, _events bigint, _keep bigint, _event text[], _custom_status text,
    _message_instance text[], _message_generation text[], _message text[], _message_delay float8[], _message_timer bigint[],
    _item_activity bigint[], _item_name text[], _item_session text[], _item_payload text[],
    _watch_session text[], _watch text[], _item_order text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    numbers bigint[]; blocked boolean[];
BEGIN
    PERFORM FROM instances WHERE instance_id = _instance FOR NO KEY UPDATE;
    PERFORM lock_order(_item_order);
    UPDATE instances i
    SET execution_id = _execution + 1, event_count = _keep + cardinality(_event), status = 'running', output = NULL,
        error = NULL, custom_status = _custom_status, owner_incarnation = NULL, claims = 0,
        unknown_since = NULL, unread = 0, updated_at = clock()
    WHERE i.instance_id = _instance AND i.generation = _generation AND i.execution_id = _execution AND i.event_count = _events;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM end_work(ARRAY[_instance]);
    INSERT INTO history (instance_id, execution_id, event_id, event, recorded_at, recorded_events, recorded_by, run_by,
        attempt)
    SELECT h.instance_id, _execution + 1, h.event_id, h.event, h.recorded_at, h.recorded_events, h.recorded_by, h.run_by,
        h.attempt
    FROM history h WHERE h.instance_id = _instance AND h.execution_id = _execution AND h.event_id <= _keep
    UNION ALL
    SELECT _instance, _execution + 1, _keep + e.k, e.event, CASE WHEN e.k = 1 THEN clock() END,
        CASE WHEN e.k = 1 THEN cardinality(_event) END, NULL, NULL, NULL
    FROM unnest(_event) WITH ORDINALITY AS e (event, k);
    -- Before all that waits, also by an earlier reset, but for timers: one that still waits keeps its time.
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
    SELECT m.instance_id, r.route,
        CASE WHEN _message_timer[m.k] IS NOT NULL
             THEN coalesce(o.visible_at, (SELECT clock()) + _message_delay[m.k] * interval '1 s')
             WHEN m.instance_id = _instance THEN least(to_timestamp(0), (
                 SELECT min(w.visible_at) - interval '1 s' FROM orchestrator_queue w WHERE w.instance_id = _instance))
             ELSE (SELECT clock()) END,
        _message[m.k], CASE WHEN _message_timer[m.k] IS NOT NULL THEN _execution + 1 END, _message_timer[m.k]
    FROM unnest(_message_instance) WITH ORDINALITY AS m (instance_id, k) JOIN message_routes r USING (instance_id)
    LEFT JOIN orchestrator_queue o
        ON o.instance_id = _instance AND o.timer_execution = _execution AND o.timer_id = _message_timer[m.k]
    WHERE _message_generation[m.k] IS NULL OR r.generation = _message_generation[m.k]
    ORDER BY m.k;
    DELETE FROM orchestrator_queue WHERE instance_id = _instance AND timer_execution = _execution;
    UPDATE orchestrator_queue SET route = 'new' WHERE instance_id = _instance AND route <> 'new';
    SELECT p.numbers, p.blocked INTO numbers, blocked FROM places_in_order(_item_order) p;
    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
        enqueued_at, order_session, order_number)
    SELECT _instance, _execution + 1, _item_activity[w.k], _item_name[w.k],
        CASE WHEN blocked[w.k] THEN NULL ELSE w.session_id END,
        CASE WHEN blocked[w.k] THEN 'blocked' WHEN w.session_id IS NULL THEN 'free'
             ELSE coalesce(s.route, 'new') END,
        (SELECT clock()) + w.k * interval '1 us', _item_payload[w.k], clock(), _item_order[w.k], numbers[w.k]
    FROM unnest(_item_session) WITH ORDINALITY AS w (session_id, k)
    LEFT JOIN session_routes s ON s.session_id = w.session_id;
    INSERT INTO session_watches (session_id, instance_id, payload)
    SELECT w.session_id, _instance, _watch[w.k] FROM unnest(_watch_session) WITH ORDINALITY AS w (session_id, k)
    ON CONFLICT (session_id, instance_id) DO UPDATE SET payload = excluded.payload;
    UPDATE suspensions SET resumed_at = clock(), tried = '{}', unchecked = true WHERE instance_id = _instance;
    RETURN true;
END $$;

-- A parked item is removed with its execution: before the statement that ends an instance empties its queue, and an append that
-- queues it meanwhile has committed by then.
CREATE FUNCTION record_ended_execution() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO ended_executions AS e (instance_id, execution_id, is_last, ended_at)
    VALUES (NEW.instance_id, OLD.execution_id, NEW.execution_id = OLD.execution_id, NEW.updated_at)
    ON CONFLICT (instance_id, execution_id) DO UPDATE SET is_last = excluded.is_last, ended_at = excluded.ended_at;
    DELETE FROM parked_items WHERE instance_id = NEW.instance_id AND parked;
    RETURN NULL;
END $$;

-- A trigger, so that each statement that changes a status is recorded. With the rights of the role that migrated: a role that
-- only ends instances needs none to this table.
CREATE FUNCTION move_status() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM instances_by_status s
    WHERE s.status = OLD.status AND s.created_at = OLD.created_at AND s.instance_id = OLD.instance_id;
    IF NEW.status IN ('suspended', 'failed', 'cancelled') THEN
        INSERT INTO instances_by_status (status, created_at, instance_id)
        VALUES (NEW.status, NEW.created_at, NEW.instance_id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;

-- Deletions have parts of their own: the part of a deletion is locked last, the part of a creation before work items and
-- sessions.
CREATE FUNCTION count_instances() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    number bigint := (SELECT count(*) FROM changed);
BEGIN
    IF number > 0 THEN
        INSERT INTO instance_counts AS c (part, instances)
        SELECT CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END * (1 + pg_backend_pid() % 16),
            CASE TG_OP WHEN 'INSERT' THEN number ELSE -number END
        ON CONFLICT (part) DO UPDATE SET instances = c.instances + excluded.instances;
    END IF;
    RETURN NULL;
END $$;

-- Needs the rights of the role that migrated: triggers come and go. They lock the table, so nothing else touches them.
CREATE FUNCTION set_quotas(_instances bigint, _unread_events bigint, _instance_bytes bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    counted boolean;
BEGIN
    LOCK TABLE quotas IN SHARE ROW EXCLUSIVE MODE; -- one after the other
    counted := EXISTS (SELECT FROM quotas q WHERE q.instances IS NOT NULL);
    IF counted AND _instances IS NULL THEN
        EXECUTE 'DROP TRIGGER instances_added ON instances';
        EXECUTE 'DROP TRIGGER instances_removed ON instances';
        DELETE FROM instance_counts;
    ELSIF _instances IS NOT NULL AND NOT counted THEN
        CREATE TRIGGER instances_added AFTER INSERT ON instances REFERENCING NEW TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION count_instances();
        CREATE TRIGGER instances_removed AFTER DELETE ON instances REFERENCING OLD TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION count_instances();
        INSERT INTO instance_counts (part, instances) SELECT 0, count(*) FROM instances;
    END IF;
    IF _instance_bytes IS NULL THEN
        DELETE FROM instance_sizes;
    END IF;
    DELETE FROM quotas;
    INSERT INTO quotas (instances, unread_events, instance_bytes) VALUES (_instances, _unread_events, _instance_bytes);
END $$;

CREATE TRIGGER execution_ended AFTER UPDATE OF status, execution_id ON instances
FOR EACH ROW WHEN (
    NEW.execution_id <> OLD.execution_id
    OR NEW.status IN ('completed', 'failed', 'cancelled') AND OLD.status NOT IN ('completed', 'failed', 'cancelled'))
EXECUTE FUNCTION record_ended_execution();
CREATE TRIGGER status_changed AFTER UPDATE OF status ON instances FOR EACH ROW WHEN (
    NEW.status <> OLD.status
    AND (NEW.status IN ('suspended', 'failed', 'cancelled') OR OLD.status IN ('suspended', 'failed', 'cancelled')))
EXECUTE FUNCTION move_status();

-- Records of session state.

CREATE TABLE session_states (
    session_id text COLLATE "C" PRIMARY KEY,
    state bytea NOT NULL,
    encoding text COLLATE "C" NOT NULL,
    schema_version integer NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C",
    parent text COLLATE "C",
    labels jsonb NOT NULL,
    message_count integer,
    participants jsonb NOT NULL,
    version bigint NOT NULL,
    -- Versions begin again with a record that is recreated.
    generation text COLLATE "C" NOT NULL DEFAULT gen_random_uuid()::text,
    epoch bigint, -- of the lease that wrote it last; NULL: none ever did
    turn text COLLATE "C", -- idempotency key of the last write
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    -- What the indexes have instead of updated_at: a session that is written many times a second then changes no
    -- indexed column, which makes all but the first of these writes heap-only updates. A listing sorts within a second.
    updated_second timestamp NOT NULL GENERATED ALWAYS AS (date_trunc('second', updated_at AT TIME ZONE 'UTC')) STORED
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0, toast.autovacuum_vacuum_threshold = 2000,
        toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_cost_delay = 0);
-- The writer has compressed the state where that saves bytes.
ALTER TABLE session_states ALTER COLUMN state SET STORAGE EXTERNAL;
CREATE INDEX session_states_updated ON session_states (updated_second);
CREATE INDEX session_states_created ON session_states (created_at);
CREATE INDEX session_states_kind ON session_states (kind, updated_second);
CREATE INDEX session_states_schema ON session_states (schema_version, updated_second);
CREATE INDEX session_states_name ON session_states (name, updated_second) WHERE name IS NOT NULL;
-- The children of a record are read in steps: a page ends at a place of this index.
CREATE INDEX session_states_children ON session_states (parent, updated_second, session_id) WHERE parent IS NOT NULL;
CREATE INDEX session_states_labels ON session_states USING gin (labels jsonb_path_ops) WHERE labels <> '{}';
CREATE INDEX session_states_participants ON session_states USING gin (participants jsonb_path_ops)
WHERE participants <> '[]';

-- Journals of sessions: see affinity/journal.py.

-- session_id: NULL when it was deleted, and other journals continue it. base_id, base_seq: the journal that it continues, up
-- to that number. first_seq: the first entry that is kept. size: bytes of the payloads of its own entries. dropped_seq: the
-- last entry that dropped requests. ended_wake, ended_attempt: the last attempt whose stream has ended. oldest_at: no
-- entry of its own is older. home: the session on whose lease the wakes run; NULL: its own. lineage, operator, extras: how it
-- was made from others (`JournalCreation` in affinity/journal.py). All that changes with each entry is in no index.
CREATE TABLE journals (
    journal_id bigint PRIMARY KEY,
    session_id text COLLATE "C",
    kind text COLLATE "C" NOT NULL,
    parent text COLLATE "C",
    parent_journal bigint, -- of the parent as it was when it created this one
    home text COLLATE "C",
    lineage text COLLATE "C",
    operator text COLLATE "C" NOT NULL DEFAULT '',
    extras text NOT NULL DEFAULT '{}',
    base_id bigint,
    base_seq bigint,
    first_seq bigint NOT NULL DEFAULT 1,
    last_seq bigint NOT NULL DEFAULT 0,
    processed bigint NOT NULL DEFAULT 0,
    dropped_seq bigint NOT NULL DEFAULT 0,
    closed boolean NOT NULL DEFAULT false,
    size bigint NOT NULL DEFAULT 0,
    ended_wake text COLLATE "C",
    ended_attempt bigint,
    -- What entries have used that were removed, by writer: the number of these entries with a usage, and its sum by name:
    -- {"WRITER": [3, {"tokens": 30}]}. A writer is the beginning that the ids of the wakes of one instance share.
    used jsonb NOT NULL DEFAULT '{}',
    oldest_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    -- Retention finds journals that are over a bound by these. A class grows by one for a quarter more. So the indexed value
    -- changes seldom as a journal grows, and never in a journal of up to 64 entries and 64 KiB.
    entries_class smallint GENERATED ALWAYS AS ((ln(greatest(last_seq - first_seq + 1, 64)::float8) * 4)::smallint) STORED,
    size_class smallint GENERATED ALWAYS AS ((ln(greatest(size, 65536)::float8) * 4)::smallint) STORED
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX journals_session ON journals (session_id);
CREATE INDEX journals_created ON journals (created_at, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX journals_kind ON journals (kind, created_at, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX journals_parent ON journals (parent, created_at, session_id) WHERE parent IS NOT NULL AND session_id IS NOT NULL;
CREATE INDEX journals_base ON journals (base_id, base_seq) WHERE base_id IS NOT NULL;
CREATE INDEX journals_oldest ON journals (oldest_at);
CREATE INDEX journals_entries_class ON journals (entries_class, journal_id);
CREATE INDEX journals_size_class ON journals (size_class, journal_id);

-- origin_id, origin_seq: the entry that a merge has copied.
CREATE TABLE journal_entries (
    journal_id bigint NOT NULL,
    seq bigint NOT NULL,
    recorded_at timestamptz NOT NULL,
    is_input boolean NOT NULL,
    kind text COLLATE "C" NOT NULL,
    event_id text COLLATE "C",
    wake_id text COLLATE "C",
    payload text NOT NULL,
    origin_id bigint,
    origin_seq bigint,
    PRIMARY KEY (journal_id, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE UNIQUE INDEX journal_entries_event ON journal_entries (journal_id, event_id) WHERE event_id IS NOT NULL;
CREATE INDEX journal_entries_kind ON journal_entries (journal_id, kind, seq);
CREATE INDEX journal_entries_wake ON journal_entries (journal_id, wake_id, seq) WHERE wake_id IS NOT NULL;
CREATE INDEX journal_entries_inputs ON journal_entries (journal_id, seq) WHERE is_input;
CREATE INDEX journal_entries_origin ON journal_entries (origin_id, origin_seq) WHERE origin_id IS NOT NULL;

-- seq: the first entry that was appended with it. place: among the requests that were added with it.
CREATE TABLE journal_requests (
    journal_id bigint NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    wake_id text COLLATE "C",
    seq bigint NOT NULL,
    place bigint NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    payload text NOT NULL,
    PRIMARY KEY (journal_id, request_id)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE journal_revisits (
    journal_id bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    due_at timestamptz NOT NULL,
    priority bigint NOT NULL,
    reason text NOT NULL,
    note text NOT NULL,
    wake_id text COLLATE "C",
    PRIMARY KEY (journal_id, key)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);

-- Provisional parts, which live for seconds. Not logged: a crash of the server may remove them, and their transactions do
-- not wait for the disk.
CREATE UNLOGGED TABLE journal_streams (
    journal_id bigint NOT NULL,
    wake_id text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    number bigint NOT NULL,
    payload text NOT NULL,
    PRIMARY KEY (journal_id, wake_id, attempt, number)
) WITH (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- A journal that others name here is kept, without its entries, when it is deleted: the way to its own parents.
CREATE TABLE journal_parents (
    journal_id bigint NOT NULL,
    position bigint NOT NULL,
    parent_id bigint NOT NULL,
    PRIMARY KEY (journal_id, position)
);
CREATE INDEX journal_parents_parent ON journal_parents (parent_id);

-- Reading.
-- The journals whose entries a journal has, the nearest first, and which of their own entries these are.
CREATE FUNCTION journal_segments(_journal bigint)
RETURNS TABLE (journal_id bigint, low bigint, high bigint, depth bigint) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE segment (journal_id, base_id, base_seq, low, high, depth) AS (
        SELECT j.journal_id, j.base_id, j.base_seq, greatest(j.base_seq, j.first_seq - 1, 0), j.last_seq, 1::bigint
        FROM journals j WHERE j.journal_id = _journal
        UNION ALL
        SELECT b.journal_id, b.base_id, b.base_seq, greatest(b.base_seq, b.first_seq - 1, 0), least(s.high, s.base_seq),
            s.depth + 1
        FROM segment s JOIN journals b ON b.journal_id = s.base_id
    )
    SELECT s.journal_id, s.low, s.high, s.depth FROM segment s WHERE s.low < s.high;
$$;

-- The numbers of entries that meet all conditions, in the given order, and the journals whose own they are. One segment
-- after the other, each by the index of the condition that the fewest entries meet.
CREATE FUNCTION find_entries(_journal bigint, _after bigint, _before bigint, _kinds text[], _wake text, _event text,
    _pending boolean, _newest boolean, _limit bigint)
RETURNS TABLE (owner bigint, seq bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    any_kind boolean := cardinality(_kinds) = 0;
    part record;
    rest bigint := _limit;
    added bigint;
BEGIN
    FOR part IN
        SELECT s.journal_id AS id, greatest(s.low, _after) AS low, least(s.high, _before - 1) AS high
        FROM journal_segments(_journal) s
        WHERE s.high > _after AND s.low < _before - 1
        ORDER BY CASE WHEN _newest THEN s.depth ELSE -s.depth END
    LOOP
        IF _event IS NOT NULL THEN
            RETURN QUERY SELECT w.journal_id, w.seq
            FROM (SELECT * FROM journal_entries e WHERE e.journal_id = part.id AND e.event_id = _event OFFSET 0) w
            WHERE w.seq > part.low AND w.seq <= part.high AND (_wake IS NULL OR w.wake_id = _wake)
              AND (any_kind OR w.kind = ANY (_kinds)) AND (w.is_input OR NOT _pending)
            LIMIT rest;
        ELSIF _wake IS NOT NULL THEN
            RETURN QUERY SELECT w.journal_id, w.seq
            FROM (SELECT * FROM journal_entries e WHERE e.journal_id = part.id AND e.wake_id = _wake OFFSET 0) w
            WHERE w.seq > part.low AND w.seq <= part.high AND (any_kind OR w.kind = ANY (_kinds))
              AND (w.is_input OR NOT _pending)
            ORDER BY CASE WHEN _newest THEN -w.seq ELSE w.seq END LIMIT rest;
        ELSIF _pending AND _newest THEN
            RETURN QUERY SELECT part.id, w.seq FROM (
                SELECT e.seq FROM journal_entries e
                WHERE e.journal_id = part.id AND e.is_input AND e.seq > part.low AND e.seq <= part.high
                ORDER BY e.seq DESC OFFSET 0) w
            WHERE any_kind OR (
                SELECT e.kind FROM journal_entries e WHERE e.journal_id = part.id AND e.seq = w.seq) = ANY (_kinds)
            LIMIT rest;
        ELSIF _pending THEN
            RETURN QUERY SELECT part.id, w.seq FROM (
                SELECT e.seq FROM journal_entries e
                WHERE e.journal_id = part.id AND e.is_input AND e.seq > part.low AND e.seq <= part.high
                ORDER BY e.seq OFFSET 0) w
            WHERE any_kind OR (
                SELECT e.kind FROM journal_entries e WHERE e.journal_id = part.id AND e.seq = w.seq) = ANY (_kinds)
            LIMIT rest;
        ELSIF NOT any_kind AND _newest THEN
            RETURN QUERY SELECT part.id, k.seq
            FROM (SELECT DISTINCT u.kind FROM unnest(_kinds) AS u (kind)) n CROSS JOIN LATERAL (
                SELECT e.seq FROM journal_entries e
                WHERE e.journal_id = part.id AND e.kind = n.kind AND e.seq > part.low AND e.seq <= part.high
                ORDER BY e.seq DESC LIMIT rest) k
            ORDER BY k.seq DESC LIMIT rest;
        ELSIF NOT any_kind THEN
            RETURN QUERY SELECT part.id, k.seq
            FROM (SELECT DISTINCT u.kind FROM unnest(_kinds) AS u (kind)) n CROSS JOIN LATERAL (
                SELECT e.seq FROM journal_entries e
                WHERE e.journal_id = part.id AND e.kind = n.kind AND e.seq > part.low AND e.seq <= part.high
                ORDER BY e.seq LIMIT rest) k
            ORDER BY k.seq LIMIT rest;
        ELSIF _newest THEN
            RETURN QUERY SELECT e.journal_id, e.seq FROM journal_entries e
            WHERE e.journal_id = part.id AND e.seq > part.low AND e.seq <= part.high
            ORDER BY e.seq DESC LIMIT rest;
        ELSE
            RETURN QUERY SELECT e.journal_id, e.seq FROM journal_entries e
            WHERE e.journal_id = part.id AND e.seq > part.low AND e.seq <= part.high
            ORDER BY e.seq LIMIT rest;
        END IF;
        GET DIAGNOSTICS added = ROW_COUNT;
        rest := rest - added;
        EXIT WHEN rest <= 0;
    END LOOP;
END $$;

-- The number of the entry with an event id in the journals that a journal continues.
CREATE FUNCTION find_inherited_event(_journal bigint, _event text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT e.seq FROM journal_segments(_journal) s
        JOIN journal_entries e ON e.journal_id = s.journal_id AND e.event_id = _event AND e.seq > s.low AND e.seq <= s.high
        WHERE s.depth > 1 AND e.seq >= (SELECT j.first_seq FROM journals j WHERE j.journal_id = _journal)
        LIMIT 1);
END $$;

-- Creating.
CREATE FUNCTION creation_parents(_creation jsonb) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY (
        SELECT p.id::bigint FROM jsonb_array_elements_text(_creation -> 'parents') WITH ORDINALITY AS p (id, n) ORDER BY p.n)
$$;

-- Why a journal is not created; NULL: nothing is in its way.
CREATE FUNCTION creation_refusal(_creation jsonb) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    _session text := _creation ->> 'session_id';
    _parents bigint[] := creation_parents(_creation);
    _base bigint := (_creation ->> 'base_id')::bigint;
    _base_seq bigint := (_creation ->> 'base_seq')::bigint;
    _merged bigint := (_creation ->> 'merged_id')::bigint;
    _merged_seq bigint := (_creation ->> 'merged_seq')::bigint;
    base journals;
    merged journals;
    same boolean;
BEGIN
    SELECT coalesce(j.lineage = _creation ->> 'lineage', false) AND j.operator = _creation ->> 'operator' AND _parents = ARRAY (
        SELECT p.parent_id FROM journal_parents p WHERE p.journal_id = j.journal_id ORDER BY p.position)
    INTO same FROM journals j WHERE j.session_id = _session;
    IF FOUND THEN
        RETURN CASE WHEN same THEN 'repeated' ELSE 'taken' END;
    END IF;
    IF EXISTS (SELECT FROM instances i WHERE i.instance_id = _session)
       OR EXISTS (SELECT FROM session_states r WHERE r.session_id = _session)
       OR EXISTS (SELECT FROM journals j WHERE j.journal_id = (_creation ->> 'journal_id')::bigint) THEN
        RETURN 'taken';
    END IF;
    SELECT * INTO base FROM journals j WHERE j.journal_id = _base AND j.session_id IS NOT NULL;
    SELECT * INTO merged FROM journals j WHERE j.journal_id = _merged AND j.session_id IS NOT NULL;
    IF _base IS NOT NULL AND base.journal_id IS NULL OR _merged IS NOT NULL AND merged.journal_id IS NULL
       OR EXISTS (
           SELECT FROM unnest(_parents) AS p (id) WHERE NOT EXISTS (SELECT FROM journals j WHERE j.journal_id = p.id)) THEN
        RETURN 'unknown';
    END IF;
    IF coalesce(_base_seq > base.last_seq OR _base_seq < base.first_seq - 1, false)
       OR coalesce(_merged_seq > merged.last_seq OR _merged_seq < merged.first_seq - 1, false)
       OR coalesce((_creation ->> 'copies_state')::boolean AND _creation ->> 'state' IS NULL AND _base_seq < base.last_seq, false)
    THEN
        RETURN 'beyond';
    END IF;
    RETURN NULL;
END $$;

-- Whether the journals of a wake can be created, and the session on whose lease it ran has no greater epoch.
CREATE FUNCTION creations_fit(_creations text, _home text, _home_epoch bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM sessions s WHERE s.session_id = _home AND s.epoch > _home_epoch)
        AND NOT EXISTS (
            SELECT FROM jsonb_array_elements(coalesce(_creations, '[]')::jsonb) AS b (creation)
            WHERE coalesce(creation_refusal(b.creation), 'repeated') <> 'repeated')
$$;

-- Creates a journal from others: see `JournalCreation`. With the rights of the role that migrated.
--
-- Rows are locked in the order of all verbs: instances, sessions, session_states, journals.
CREATE FUNCTION create_journal(_creation jsonb, OUT outcome text, OUT created_id bigint, OUT created_seq bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    _session text := _creation ->> 'session_id';
    _id bigint := (_creation ->> 'journal_id')::bigint;
    _parents bigint[] := creation_parents(_creation);
    _base bigint := (_creation ->> 'base_id')::bigint;
    _base_seq bigint := (_creation ->> 'base_seq')::bigint;
    _merged bigint := (_creation ->> 'merged_id')::bigint;
    _merged_seq bigint := (_creation ->> 'merged_seq')::bigint;
    _now timestamptz := clock();
    base journals;
    merged journals;
    copied bigint := 0;
BEGIN
    outcome := creation_refusal(_creation);
    IF outcome IS NOT NULL THEN
        SELECT j.journal_id, j.last_seq INTO created_id, created_seq FROM journals j WHERE j.session_id = _session;
        RETURN;
    END IF;
    IF (_creation ->> 'of_wake')::boolean THEN
        PERFORM add_instances(
            ARRAY[_session], ARRAY[_creation ->> 'generation'], ARRAY[_creation ->> 'name'], ARRAY[_creation ->> 'version'],
            ARRAY[_creation ->> 'start'], _session => ARRAY[_session]);
    ELSIF EXISTS (
        SELECT FROM create_instances(
            ARRAY[_session], ARRAY[_creation ->> 'generation'], ARRAY[_creation ->> 'name'], ARRAY[_creation ->> 'version'],
            ARRAY[_creation ->> 'start'], _session => ARRAY[_session]) c
        WHERE c.quota IS NOT NULL) THEN
        outcome := 'over_quota';
        RETURN;
    END IF;
    SELECT * INTO base FROM journals j WHERE j.journal_id = _base;
    SELECT * INTO merged FROM journals j WHERE j.journal_id = _merged;
    IF (_creation ->> 'copies_state')::boolean OR _creation ->> 'state' IS NOT NULL THEN
        INSERT INTO sessions AS s (session_id, worker_id, incarnation, epoch, locked_until, touched_at, claimed_at)
        VALUES (_session, '', '', nextval('epochs'), _now, _now, _now)
        ON CONFLICT (session_id) DO UPDATE SET epoch = excluded.epoch;
        INSERT INTO session_states (session_id, state, encoding, schema_version, kind, name, labels, message_count,
            participants, version, generation, created_at, updated_at)
        SELECT _session, r.state, r.encoding, r.schema_version, r.kind, r.name, r.labels, r.message_count,
            r.participants, 1, gen_random_uuid()::text, _now, _now
        FROM session_states r WHERE _creation ->> 'state' IS NULL AND r.session_id = base.session_id
        UNION ALL
        SELECT _session, decode(_creation ->> 'state', 'base64'), _creation ->> 'encoding',
            (_creation ->> 'schema_version')::bigint, _creation ->> 'state_kind', _creation ->> 'state_name', _creation -> 'labels',
            (_creation ->> 'message_count')::bigint, _creation -> 'participants', 1, gen_random_uuid()::text,
            least((_creation ->> 'created_at')::timestamptz, _now), least((_creation ->> 'updated_at')::timestamptz, _now)
        WHERE _creation ->> 'state' IS NOT NULL;
    END IF;
    -- They stay until the commit, as they are needed here.
    PERFORM FROM journals j WHERE j.journal_id = ANY (_parents || _base || _merged) ORDER BY j.session_id FOR KEY SHARE;
    IF _base IS NOT NULL AND NOT EXISTS (SELECT FROM journals j WHERE j.journal_id = _base AND j.session_id IS NOT NULL)
       OR _merged IS NOT NULL
          AND NOT EXISTS (SELECT FROM journals j WHERE j.journal_id = _merged AND j.session_id IS NOT NULL) THEN
        RAISE serialization_failure USING MESSAGE = 'the journal was deleted in this moment';
    END IF;
    -- A wake that has committed since the journal was read has changed the state that was copied.
    IF EXISTS (
        SELECT FROM journals j WHERE j.journal_id = _base
          AND (j.first_seq, j.processed, j.ended_wake, j.ended_attempt)
              IS DISTINCT FROM (base.first_seq, base.processed, base.ended_wake, base.ended_attempt)) THEN
        RAISE serialization_failure USING MESSAGE = 'the journal has changed in this moment';
    END IF;
    _base_seq := coalesce(_base_seq, base.last_seq);
    _merged_seq := coalesce(_merged_seq, merged.last_seq);
    created_id := _id;
    created_seq := coalesce(_base_seq, 0);
    INSERT INTO journals (journal_id, session_id, kind, parent, first_seq, last_seq, processed, base_id, base_seq, home,
        lineage, operator, extras, used, oldest_at, created_at, updated_at)
    VALUES (_id, _session, _creation ->> 'kind', _creation ->> 'parent',
        coalesce((SELECT j.first_seq FROM journals j WHERE j.journal_id = _base), 1), created_seq,
        least(base.processed, _base_seq, created_seq), _base, _base_seq, _creation ->> 'home', _creation ->> 'lineage',
        _creation ->> 'operator', _creation ->> 'extras',
        coalesce(merged.used, '{}') || coalesce(base.used, '{}'), _now, _now, _now);
    INSERT INTO journal_parents (journal_id, position, parent_id)
    SELECT _id, p.n, p.id FROM unnest(_parents) WITH ORDINALITY AS p (id, n);
    IF _merged IS NOT NULL THEN
        -- Of each part that both have, the longer one's end; then what neither has copied from the other.
        WITH left_part AS MATERIALIZED (SELECT s.journal_id, s.low, s.high FROM journal_segments(_id) s),
        fresh AS (
            SELECT e.*, coalesce(e.origin_id, e.journal_id) AS from_id, coalesce(e.origin_seq, e.seq) AS from_seq
            FROM journal_segments(_merged) r
            LEFT JOIN left_part l USING (journal_id)
            JOIN journal_entries e ON e.journal_id = r.journal_id AND e.seq > greatest(r.low, l.high)
                                  AND e.seq <= least(r.high, _merged_seq)
        )
        INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload, origin_id,
            origin_seq)
        SELECT _id, created_seq + row_number() OVER (ORDER BY f.seq), f.recorded_at,
            f.is_input AND f.seq > merged.processed, f.kind,
            CASE WHEN NOT EXISTS (
                SELECT FROM left_part l JOIN journal_entries o ON o.journal_id = l.journal_id AND o.event_id = f.event_id
                WHERE o.seq > l.low AND o.seq <= l.high) THEN f.event_id END,
            f.wake_id, f.payload, f.from_id, f.from_seq
        FROM fresh f
        WHERE NOT EXISTS (
                SELECT FROM left_part l
                WHERE l.journal_id = f.from_id AND f.from_seq > l.low AND f.from_seq <= l.high)
          AND NOT EXISTS (
                SELECT FROM journal_entries o JOIN left_part l ON l.journal_id = o.journal_id
                WHERE o.origin_id = f.from_id AND o.origin_seq = f.from_seq AND o.seq > l.low AND o.seq <= l.high);
        GET DIAGNOSTICS copied = ROW_COUNT;
        created_seq := created_seq + copied;
    END IF;
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload)
    SELECT _id, created_seq + e.n, coalesce((e.entry ->> 5)::timestamptz, _now), (e.entry ->> 4)::boolean, e.entry ->> 0,
        e.entry ->> 2, e.entry ->> 3, e.entry ->> 1
    FROM jsonb_array_elements(_creation -> 'entries') WITH ORDINALITY AS e (entry, n);
    GET DIAGNOSTICS copied = ROW_COUNT;
    created_seq := created_seq + copied;
    UPDATE journals j SET last_seq = created_seq, size = (
        SELECT coalesce(sum(octet_length(e.payload)), 0) FROM journal_entries e WHERE e.journal_id = _id),
        oldest_at = least(oldest_at, CASE WHEN _base IS NULL
            THEN (SELECT min(e.recorded_at) FROM journal_entries e WHERE e.journal_id = _id) END)
    WHERE j.journal_id = _id;
    IF _creation ->> 'message' IS NOT NULL AND EXISTS (
        SELECT FROM journals j CROSS JOIN LATERAL find_entries(
            _id, j.processed, created_seq + 1, '{}', NULL, NULL, true, false, 1)
        WHERE j.journal_id = _id) THEN
        PERFORM send_messages(
            ARRAY[_session], NULL, ARRAY[replace(_creation ->> 'message', '"$SEQ"', created_seq::text)]);
    END IF;
    outcome := 'created';
END $$;

-- The same for clients: the quotas apply, and the state of a session is copied from another one, or there is none.
CREATE FUNCTION create_journal_for_client(_creation jsonb, OUT outcome text, OUT created_id bigint, OUT created_seq bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF _creation ? 'state' THEN
        RAISE insufficient_privilege USING MESSAGE = 'create_journal_for_client takes no state';
    END IF;
    SELECT b.* INTO outcome, created_id, created_seq FROM create_journal(_creation - 'of_wake') b;
END $$;

-- Creates the journals that wakes create, behind what these wakes have added to their journals, which are in the same order;
-- see `JournalWrite`. With `_only`, journals of other writes are left out.
CREATE FUNCTION create_journals(_creations text[], _home text[], _home_epoch bigint[], _only bigint[] = NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM sessions s WHERE s.session_id = ANY (_home) ORDER BY s.session_id FOR NO KEY UPDATE;
    IF EXISTS (
        SELECT FROM unnest(_home) WITH ORDINALITY AS h (session_id, n) JOIN sessions s USING (session_id)
        WHERE s.epoch > _home_epoch[h.n] AND (_only IS NULL OR h.n = ANY (_only)))
       OR EXISTS (
        SELECT FROM unnest(_creations) WITH ORDINALITY AS w (creations, n)
        CROSS JOIN LATERAL jsonb_array_elements(w.creations::jsonb) AS b (creation)
        CROSS JOIN LATERAL create_journal(b.creation || '{"of_wake": true}') AS r
        WHERE w.creations IS NOT NULL AND (_only IS NULL OR w.n = ANY (_only)) AND r.outcome NOT IN ('created', 'repeated')) THEN
        PERFORM refuse();
    END IF;
END $$;

-- Creates the journals and instances that appends are to start, as far as they are missing; returns the new journals.
CREATE FUNCTION start_journals(
    _session text[], _kind text[], _entry_kind text[], _event text[], _sender text[], _start_name text[], _start text[],
    _start_generation text[], _start_version text[], _start_journal bigint[], _start_parent text[], _only bigint[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    of_wakes bigint[]; -- places of elements that need an instance: no quota refuses what a wake starts
    missing bigint[];  -- the same of clients
    wanted bigint[];   -- places of elements that need a journal
    refused boolean;
    created bigint[];
BEGIN
    PERFORM FROM journals j WHERE j.session_id = ANY (_session) ORDER BY j.session_id FOR NO KEY UPDATE;
    SELECT array_agg(f.k) FILTER (WHERE f.needs_instance AND _sender[f.k] IS NOT NULL),
        array_agg(f.k) FILTER (WHERE f.needs_instance AND _sender[f.k] IS NULL),
        array_agg(f.k) FILTER (WHERE f.needs_journal)
    INTO of_wakes, missing, wanted
    FROM (
        SELECT DISTINCT ON (s.session_id) s.session_id, s.k, i.instance_id IS NULL AS needs_instance,
            j.journal_id IS NULL AS needs_journal
        FROM unnest(_session) WITH ORDINALITY AS s (session_id, k)
        LEFT JOIN instances i ON i.instance_id = s.session_id
        LEFT JOIN journals j ON j.session_id = s.session_id
        WHERE _start_name[s.k] IS NOT NULL AND (_only IS NULL OR s.k = ANY (_only))
          AND (i.instance_id IS NULL OR j.journal_id IS NULL)
          AND (i.instance_id IS NULL OR i.name = _start_name[s.k] AND i.status IN ('pending', 'running', 'suspended'))
          AND CASE WHEN j.journal_id IS NULL THEN _entry_kind[s.k] IS NOT NULL
                   ELSE j.kind = _kind[s.k] AND NOT j.closed AND NOT EXISTS (
                       SELECT FROM journal_entries e WHERE e.journal_id = j.journal_id AND e.event_id = _event[s.k]) END
          AND (_sender[s.k] IS NULL
               OR _sender[s.k] = CASE WHEN j.journal_id IS NULL THEN _start_parent[s.k] ELSE j.parent END)
        ORDER BY s.session_id, s.k) f;
    IF of_wakes IS NOT NULL THEN
        PERFORM add_instances(_session, _start_generation, _start_name, _start_version, _start, _session => _session,
            _only => of_wakes);
    END IF;
    IF missing IS NOT NULL THEN
        SELECT bool_or(c.quota IS NOT NULL) INTO refused FROM create_instances(
            _session, _start_generation, _start_name, _start_version, _start, _session => _session, _only => missing) c;
        IF refused AND cardinality(missing) > 1 THEN -- a quota refuses all of a batch: then each is tried on its own
            PERFORM create_instances(_session, _start_generation, _start_name, _start_version, _start, _session => _session,
                _only => ARRAY[m.k])
            FROM unnest(missing) AS m (k);
        END IF;
    END IF;
    IF wanted IS NOT NULL THEN
        WITH added AS (
            INSERT INTO journals (journal_id, session_id, kind, parent, parent_journal, oldest_at, created_at, updated_at)
            SELECT _start_journal[w.k], i.instance_id, _kind[w.k], _start_parent[w.k],
                (SELECT p.journal_id FROM journals p WHERE p.session_id = _start_parent[w.k]), c.now, c.now, c.now
            FROM unnest(wanted) AS w (k) CROSS JOIN (SELECT clock() AS now) c
            JOIN instances i ON i.instance_id = _session[w.k] AND i.name = _start_name[w.k]
            ORDER BY i.instance_id
            ON CONFLICT (session_id) DO NOTHING
            RETURNING journal_id
        )
        SELECT array_agg(a.journal_id) INTO created FROM added a;
    END IF;
    RETURN created;
END $$;

-- Appending.
-- Queues the parked items of instances (NULL: none); returns the holders of their sessions. Without a join of all that it
-- queues with all that it was given, which takes as long as their product.
CREATE FUNCTION unpark_items(_instance text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    moment timestamptz := clock();
    missing bigint := cardinality(array_remove(_instance, NULL));
    holders text[] := array_fill(NULL::text, ARRAY[cardinality(_instance)]);
    place bigint;
    worker text;
BEGIN
    FOR place, worker IN
        WITH item AS (
            UPDATE parked_items a SET parked = false
            FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k)
            WHERE a.instance_id = w.instance_id
            RETURNING a.*, w.k
        ), routed AS MATERIALIZED (
            SELECT i.*, s.holder, s.route FROM item i LEFT JOIN session_routes s ON s.session_id = i.session_id
        ), queued AS (
            INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
                enqueued_at)
            SELECT r.instance_id, r.execution_id, r.activity_id, r.name, r.session_id,
                CASE WHEN r.session_id IS NULL THEN 'free' ELSE coalesce(r.route, 'new') END,
                moment + r.k * interval '1 us', r.payload, moment
            FROM routed r
        )
        SELECT r.k, r.holder FROM routed r
    LOOP
        holders[place] := worker;
        missing := missing - 1;
    END LOOP;
    IF missing > 0 THEN
        PERFORM refuse(); -- its execution has ended in this moment
    END IF;
    RETURN holders;
END $$;

-- Appends to journals: see `JournalAppend.message`. An element of round n > 1 names a journal that an element of round n - 1
-- names too. fresh: journals that this batch has created. holders: of the sessions of items that were queued; NULL: none was.
CREATE FUNCTION append_journals(
    _session text[], _kind text[], _entry_kind text[], _entry text[], _event text[], _wake text[], _input boolean[],
    _message text[], _unread_limit bigint[],
    _start_name text[] = NULL, _start text[] = NULL, _start_generation text[] = NULL, _start_version text[] = NULL,
    _start_journal bigint[] = NULL, _start_parent text[] = NULL,
    _answer text[] = NULL, _answer_kind text[] = NULL, _answer_wake text[] = NULL, _drops boolean[] = NULL,
    _closes boolean[] = NULL, _sender text[] = NULL,
    _round bigint[] = NULL, _rounds bigint = 1, _only bigint[] = NULL, _journal bigint[] = NULL,
    OUT places bigint[], OUT outcomes text[], OUT seqs bigint[], OUT journal_ids bigint[], OUT created boolean[],
    OUT unparked boolean[], OUT holders text[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    most quotas;
    fresh bigint[];
    done integer := 0; -- places of the rounds before
    unused text[];     -- instances that this batch has created
BEGIN
    SELECT * INTO most FROM quotas;
    IF _start_name IS NOT NULL THEN
        IF _journal IS NOT NULL THEN
            -- Only the instance may be created for these, and not the journal.
            _start_name := ARRAY (
                SELECT CASE WHEN _journal[s.k] IS NULL OR j.journal_id = _journal[s.k] THEN _start_name[s.k] END
                FROM unnest(_session) WITH ORDINALITY AS s (session_id, k)
                LEFT JOIN journals j ON j.session_id = s.session_id ORDER BY s.k);
        END IF;
        IF EXISTS (
            SELECT FROM unnest(_session, _start_name) AS s (session_id, start_name)
            WHERE s.start_name IS NOT NULL AND NOT EXISTS (
                SELECT FROM journals j JOIN instances i ON i.instance_id = j.session_id WHERE j.session_id = s.session_id))
        THEN
            fresh := start_journals(_session, _kind, _entry_kind, _event, _sender, _start_name, _start, _start_generation,
                _start_version, _start_journal, _start_parent, _only);
        END IF;
    END IF;
    PERFORM FROM journals j WHERE j.session_id = ANY (_session) ORDER BY j.session_id FOR NO KEY UPDATE;
    IF most.instance_bytes IS NOT NULL THEN
        PERFORM measure_instances(_session);
    END IF;
    FOR this IN 1 .. _rounds LOOP
        WITH judged AS MATERIALIZED (
            SELECT s.session_id, s.k, j.journal_id, r.route, coalesce(z.parked, false) AS parked,
                coalesce(z.parked AND _input[s.k] AND _message[s.k] IS NOT NULL, false) AS unparks,
                coalesce(e.seq, j.last_seq + (_entry_kind[s.k] IS NOT NULL)::int) AS seq,
                CASE
                    WHEN (j.journal_id <> _journal[s.k]) IS TRUE
                      OR j.journal_id IS NULL AND (_start_name[s.k] IS NULL OR _entry_kind[s.k] IS NULL)
                      OR j.last_seq = 0 AND j.journal_id = ANY (fresh) AND _start_name[s.k] IS NULL THEN 'unknown'
                    WHEN j.kind <> _kind[s.k] THEN 'other_kind'
                    WHEN e.seq IS NOT NULL THEN 'repeated'
                    WHEN j.closed OR i.instance_id IS NOT NULL AND r.route IS NULL
                         AND (i.name <> _start_name[s.k]) IS NOT TRUE THEN 'closed'
                    WHEN _sender[s.k] IS NOT NULL AND _sender[s.k] IS DISTINCT FROM
                         CASE WHEN j.journal_id IS NULL THEN _start_parent[s.k] ELSE j.parent END THEN 'not_parent'
                    WHEN _answer[s.k] IS NOT NULL AND NOT EXISTS (
                        SELECT FROM journal_requests r
                        WHERE r.journal_id = j.journal_id AND r.request_id = _answer[s.k] AND r.kind = _answer_kind[s.k]
                          AND (_answer_wake[s.k] IS NULL OR r.wake_id = _answer_wake[s.k])
                          AND (r.expires_at IS NULL OR r.expires_at > clock())) THEN 'not_pending'
                    WHEN i.name <> _start_name[s.k] THEN 'taken'
                    WHEN i.instance_id IS NULL AND _start_name[s.k] IS NOT NULL THEN 'over_quota'
                    WHEN i.instance_id IS NULL AND _message[s.k] IS NOT NULL THEN 'unknown'
                    WHEN j.journal_id IS NULL THEN refuse()::text -- it, or the instance, was deleted in this moment
                    -- The quotas count as for messages; they refuse nothing that a wake sends to a child.
                    WHEN _message[s.k] IS NULL OR z.parked AND _input[s.k] OR _unread_limit[s.k] IS NULL
                      OR _sender[s.k] IS NOT NULL THEN NULL
                    WHEN i.unread + (
                        SELECT count(*) FROM (
                            SELECT FROM orchestrator_queue q
                            WHERE q.instance_id = s.session_id AND q.timer_execution IS NULL
                            LIMIT least(_unread_limit[s.k], most.unread_events)
                        ) unread
                    ) >= least(_unread_limit[s.k], most.unread_events) THEN 'full'
                    WHEN most.instance_bytes IS NOT NULL
                     AND instance_bytes(s.session_id, i.generation) + octet_length(_message[s.k]) > most.instance_bytes
                    THEN 'over_quota'
                END AS outcome
            FROM unnest(_session) WITH ORDINALITY AS s (session_id, k)
            LEFT JOIN journals j ON j.session_id = s.session_id
            LEFT JOIN instances i ON i.instance_id = s.session_id
            -- OFFSET 0: by the key, though statistics may say that there are few instances.
            LEFT JOIN LATERAL (SELECT m.route FROM message_routes m WHERE m.instance_id = s.session_id OFFSET 0) r ON true
            LEFT JOIN LATERAL (
                SELECT coalesce(
                    (SELECT o.seq FROM journal_entries o WHERE o.journal_id = j.journal_id AND o.event_id = _event[s.k]),
                    CASE WHEN j.base_id IS NOT NULL THEN find_inherited_event(j.journal_id, _event[s.k]) END) AS seq
                WHERE _event[s.k] IS NOT NULL) e ON true
            LEFT JOIN LATERAL (
                SELECT a.parked FROM parked_items a
                WHERE a.instance_id = s.session_id AND a.generation = i.generation AND a.execution_id = i.execution_id OFFSET 0
            ) z ON true
            WHERE (_round IS NULL OR _round[s.k] = this) AND (_only IS NULL OR s.k = ANY (_only))
        ), sent AS (
            INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
            SELECT p.session_id, p.route, (SELECT clock()),
                replace(replace(_message[p.k], '"$SEQ"', p.seq::text), '"$PARKED"', p.parked::text)
            FROM judged p WHERE p.outcome IS NULL AND _message[p.k] IS NOT NULL AND NOT p.unparks ORDER BY p.k
        ), entered AS (
            INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload)
            SELECT p.journal_id, p.seq, (SELECT clock()), _input[p.k], _entry_kind[p.k], _event[p.k], _wake[p.k],
                _entry[p.k]
            FROM judged p WHERE p.outcome IS NULL AND _entry_kind[p.k] IS NOT NULL
        ), changed AS (
            UPDATE journals j
            SET last_seq = p.seq, size = j.size + coalesce(octet_length(_entry[p.k]), 0),
                dropped_seq = CASE WHEN _drops[p.k] THEN p.seq ELSE j.dropped_seq END,
                closed = j.closed OR coalesce(_closes[p.k], false), updated_at = clock()
            FROM judged p WHERE j.journal_id = p.journal_id AND p.outcome IS NULL
        )
        SELECT places || array_agg(p.k), outcomes || array_agg(p.outcome), seqs || array_agg(p.seq),
            journal_ids || array_agg(p.journal_id), unparked || array_agg(p.unparks AND p.outcome IS NULL),
            created || array_agg(coalesce(p.outcome IS NULL AND p.seq = 1 AND p.journal_id = ANY (fresh), false))
        INTO places, outcomes, seqs, journal_ids, unparked, created
        FROM judged p;
        IF _answer IS NOT NULL THEN
            DELETE FROM journal_requests r
            USING unnest(places[done + 1:], outcomes[done + 1:], journal_ids[done + 1:]) AS p (k, outcome, journal_id)
            WHERE p.outcome IS NULL AND r.journal_id = p.journal_id AND (_drops[p.k] OR r.request_id = _answer[p.k]);
            DELETE FROM journal_revisits r
            USING unnest(places[done + 1:], outcomes[done + 1:], journal_ids[done + 1:]) AS p (k, outcome, journal_id)
            WHERE p.outcome IS NULL AND r.journal_id = p.journal_id AND _drops[p.k];
        END IF;
        IF true = ANY (unparked) THEN -- in this round or before
            holders := coalesce(holders, array_fill(NULL::text, ARRAY[done])) || unpark_items(ARRAY (
                SELECT CASE WHEN p.unparked THEN _session[p.k] END
                FROM unnest(places[done + 1:], unparked[done + 1:]) WITH ORDINALITY AS p (k, unparked, x) ORDER BY p.x));
        END IF;
        done := cardinality(places);
    END LOOP;
    IF fresh IS NOT NULL THEN
        -- What was started for an element that a limit has refused since.
        WITH empty AS (
            DELETE FROM journals j WHERE j.journal_id = ANY (fresh) AND j.last_seq = 0 RETURNING j.session_id
        )
        -- Not an instance that was there before, which keeps its messages.
        SELECT array_agg(i.instance_id) INTO unused FROM empty e JOIN instances i ON i.instance_id = e.session_id
        WHERE i.generation = ANY (_start_generation);
        IF unused IS NOT NULL THEN
            PERFORM delete_instances(unused, true, false);
        END IF;
    END IF;
END $$;

-- One input of a journal that is there, for an instance whose next work item is parked: the append of a client that makes one at
-- a time, with scalars in place of arrays of one element. All else is done by `append_journals`, with the same answer.
CREATE FUNCTION append_input(
    _session text, _kind text, _entry_kind text, _entry text, _event text, _message text, _unread_limit bigint,
    OUT outcome text, OUT seq bigint, OUT journal bigint, OUT unparked boolean, OUT holder text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    base bigint;
    item parked_items;
    route text;
    moment timestamptz;
BEGIN
    unparked := false;
    SELECT j.journal_id, j.last_seq + 1, j.base_id INTO journal, seq, base FROM journals j
    WHERE j.session_id = _session AND j.kind = _kind AND NOT j.closed FOR NO KEY UPDATE;
    IF FOUND THEN
        PERFORM FROM journal_entries e WHERE e.journal_id = journal AND e.event_id = _event;
        IF NOT FOUND AND (base IS NULL OR find_inherited_event(journal, _event) IS NULL) THEN
            UPDATE parked_items a SET parked = false
            FROM instances i
            WHERE a.instance_id = _session AND a.parked
              AND i.instance_id = a.instance_id AND i.generation = a.generation AND i.execution_id = a.execution_id
              AND i.status IN ('pending', 'running', 'suspended')
              AND NOT EXISTS (SELECT FROM quotas q WHERE q.instance_bytes IS NOT NULL)
            RETURNING a.* INTO item;
            unparked := FOUND;
        END IF;
    END IF;
    IF NOT unparked THEN
        SELECT a.outcomes[1], a.seqs[1], a.journal_ids[1], a.unparked[1], a.holders[1]
        INTO outcome, seq, journal, unparked, holder
        FROM append_journals(ARRAY[_session], ARRAY[_kind], ARRAY[_entry_kind], ARRAY[_entry], ARRAY[_event],
            ARRAY[NULL], ARRAY[true], ARRAY[_message], ARRAY[_unread_limit]) a;
        RETURN;
    END IF;
    SELECT s.holder, s.route INTO holder, route FROM session_routes s WHERE s.session_id = item.session_id;
    moment := clock();
    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload, enqueued_at)
    VALUES (_session, item.execution_id, item.activity_id, item.name, item.session_id,
        CASE WHEN item.session_id IS NULL THEN 'free' ELSE coalesce(route, 'new') END, moment, item.payload, moment);
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, payload)
    VALUES (journal, seq, moment, true, _entry_kind, _event, _entry);
    UPDATE journals j SET last_seq = seq, size = j.size + octet_length(_entry), updated_at = moment
    WHERE j.journal_id = journal;
END $$;

-- The fallback entries that wakes append in place of refused ones: see `JournalAppend.if_refused`.

-- Called after `append_journals` with its result: appends the fallback entries of the places that were refused. `_bounces` is an
-- array of objects, each with its place. REFUSAL_MARK in an entry becomes the outcome. Returns how many were appended.
CREATE FUNCTION bounce_journals(_places bigint[], _outcomes text[], _bounces json) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    session text[]; kind text[]; entry_kind text[]; entry text[]; event text[]; wake text[]; input boolean[]; message text[]; journals bigint[];
    round bigint[];
BEGIN
    SELECT array_agg(b.session ORDER BY b.n), array_agg(b.kind ORDER BY b.n), array_agg(b.entry_kind ORDER BY b.n),
        array_agg(replace(b.entry, '"\u001a"', to_json(p.outcome)::text) ORDER BY b.n), array_agg(b.event ORDER BY b.n),
        array_agg(b.wake ORDER BY b.n), array_agg(b.input ORDER BY b.n), array_agg(b.message ORDER BY b.n), array_agg(b.journal ORDER BY b.n),
        array_agg(b.round ORDER BY b.n)
    INTO session, kind, entry_kind, entry, event, wake, input, message, journals, round
    FROM unnest(_places, _outcomes) AS p (place, outcome)
    JOIN (
        -- Gaps in the rounds of a session do no harm.
        SELECT x.*, row_number() OVER (PARTITION BY x.session ORDER BY x.n) AS round
        FROM ROWS FROM (
            json_to_recordset(_bounces) AS (
                place bigint, session text, kind text, entry_kind text, entry text, event text, wake text, input boolean,
                message text, journal bigint)
        ) WITH ORDINALITY AS x (place, session, kind, entry_kind, entry, event, wake, input, message, journal, n)
    ) b ON b.place = p.place
    WHERE p.outcome <> 'repeated';
    IF session IS NOT NULL THEN
        PERFORM FROM append_journals(session, kind, entry_kind, entry, event, wake, input, message,
            array_fill(NULL::bigint, ARRAY[cardinality(session)]), _journal => journals, _round => round,
            _rounds => (SELECT max(r.n) FROM unnest(round) AS r (n)));
    END IF;
    RETURN coalesce(cardinality(session), 0);
END $$;

-- Parks items, called behind a commit of their turns and what wakes have added to their journals; before that,
-- removes items that the turns cancel. Items that may not be parked are queued. By position: NULL if the item is parked, else the
-- worker that is to fetch it, or an empty text; NULL: all are parked. `_lock` has the sessions of the journals, unless the
-- transaction has locked these.
CREATE FUNCTION park_items(
    _instance text[] = NULL, _generation text[] = NULL, _execution bigint[] = NULL, _activity bigint[] = NULL,
    _name text[] = NULL, _session text[] = NULL, _payload text[] = NULL, _lock text[] = NULL,
    _cancel_instance text[] = NULL, _cancel_execution bigint[] = NULL, _cancel_activity bigint[] = NULL
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    busy text[];
    queued text[];
BEGIN
    -- Only a commit of an instance adds its row. Most instances that cancel something have none.
    IF _instance IS NULL AND (SELECT true FROM parked_items a WHERE a.instance_id = ANY (_cancel_instance) LIMIT 1) IS NULL THEN
        RETURN NULL;
    END IF;
    IF _lock IS NOT NULL THEN
        PERFORM FROM journals j WHERE j.session_id = ANY (_lock) ORDER BY j.session_id FOR NO KEY UPDATE;
    END IF;
    IF _cancel_instance IS NOT NULL THEN
        UPDATE parked_items a SET parked = false
        FROM unnest(_cancel_instance) WITH ORDINALITY AS c (instance_id, k)
        WHERE a.instance_id = c.instance_id AND a.execution_id = _cancel_execution[c.k]
          AND a.activity_id = _cancel_activity[c.k] AND a.parked;
        -- What an append has queued after the commit had looked into the queue.
        DELETE FROM worker_queue q
        USING unnest(_cancel_instance) WITH ORDINALITY AS c (instance_id, k) JOIN parked_items a USING (instance_id)
        WHERE a.execution_id = _cancel_execution[c.k] AND a.activity_id = _cancel_activity[c.k]
          AND q.instance_id = a.instance_id AND q.execution_id = a.execution_id AND q.activity_id = a.activity_id;
    END IF;
    IF _instance IS NULL THEN
        RETURN NULL;
    END IF;
    WITH put AS (
        INSERT INTO parked_items AS a (instance_id, generation, execution_id, activity_id, name, session_id, payload, parked)
        SELECT w.instance_id, _generation[w.k], _execution[w.k], _activity[w.k], _name[w.k], _session[w.k], _payload[w.k],
            CASE
                WHEN j.journal_id IS NULL THEN false
                WHEN (SELECT true FROM journal_entries e
                      WHERE e.journal_id = j.journal_id AND e.is_input AND e.seq > j.processed LIMIT 1) THEN false
                WHEN j.processed < j.base_seq THEN (
                    SELECT true FROM find_entries(
                        j.journal_id, j.processed, 9223372036854775807, '{}', NULL, NULL, true, false, 1)) IS NULL
                ELSE true
            END
        FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k)
        LEFT JOIN journals j ON j.session_id = w.instance_id
        ON CONFLICT (instance_id) DO UPDATE
        SET generation = excluded.generation, execution_id = excluded.execution_id, activity_id = excluded.activity_id,
            name = excluded.name, session_id = excluded.session_id, payload = excluded.payload, parked = excluded.parked
        RETURNING a.instance_id, a.parked
    )
    SELECT array_agg(p.instance_id) FILTER (WHERE NOT p.parked) INTO busy FROM put p;
    IF busy IS NULL THEN
        RETURN NULL;
    END IF;
    queued := ARRAY (
        SELECT CASE WHEN w.instance_id = ANY (busy) THEN w.instance_id END
        FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k) ORDER BY w.k);
    RETURN ARRAY (
        SELECT CASE WHEN p.instance_id IS NOT NULL THEN coalesce(p.holder, '') END
        FROM unnest(queued, unpark_items(queued)) WITH ORDINALITY AS p (instance_id, holder, k) ORDER BY p.k);
END $$;

-- Removing.
-- Deletes journals, but for entries that others continue. Also removes earlier deleted journals that no journal continues, or
-- names as its parent, any more. Returns their sessions.
CREATE FUNCTION delete_journals(_session text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    gone bigint[];
    deleted text[];
    freed bigint[];
    kept bigint[];
BEGIN
    -- Who makes a journal that continues one of these locks its row too.
    SELECT array_agg(l.journal_id), array_agg(l.session_id) INTO gone, deleted
    FROM (
        SELECT j.journal_id, j.session_id FROM journals j
        WHERE j.session_id = ANY (_session) ORDER BY j.session_id FOR UPDATE) l;
    UPDATE journals j SET session_id = NULL, updated_at = clock() WHERE j.journal_id = ANY (gone);
    DELETE FROM journal_requests r WHERE r.journal_id = ANY (gone);
    DELETE FROM journal_revisits r WHERE r.journal_id = ANY (gone);
    DELETE FROM journal_streams s WHERE s.journal_id = ANY (gone);
    LOOP
        WITH removed AS (
            DELETE FROM journals j
            WHERE j.journal_id = ANY (gone) AND j.session_id IS NULL
              AND NOT EXISTS (SELECT FROM journals f WHERE f.base_id = j.journal_id)
              AND NOT EXISTS (SELECT FROM journal_parents p WHERE p.parent_id = j.journal_id)
            RETURNING j.journal_id, j.base_id
        ), emptied AS (
            DELETE FROM journal_entries e USING removed r WHERE e.journal_id = r.journal_id
        ), orphaned AS (
            DELETE FROM journal_parents p USING removed r WHERE p.journal_id = r.journal_id RETURNING p.parent_id
        )
        SELECT array_agg(DISTINCT f.id) FILTER (WHERE f.id IS NOT NULL) INTO freed
        FROM (SELECT r.base_id AS id FROM removed r UNION SELECT o.parent_id FROM orphaned o) f;
        kept := kept || gone;
        EXIT WHEN freed IS NULL;
        gone := freed;
        PERFORM FROM journals j WHERE j.journal_id = ANY (gone) AND j.session_id IS NULL
        ORDER BY j.journal_id FOR UPDATE;
    END LOOP;
    -- Of journals that are kept, the entries after the last one that another journal continues.
    DELETE FROM journal_entries e
    USING (
        SELECT j.journal_id, (SELECT max(f.base_seq) FROM journals f WHERE f.base_id = j.journal_id) AS seq
        FROM journals j WHERE j.session_id IS NULL AND j.journal_id = ANY (kept)) k
    WHERE e.journal_id = k.journal_id AND e.seq > coalesce(k.seq, 0);
    RETURN deleted;
END $$;

-- A journal is deleted with the record of its session.
CREATE FUNCTION delete_journal_of_record() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT FROM deleted d JOIN journals j USING (session_id)) THEN
        PERFORM delete_journals(ARRAY (SELECT d.session_id FROM deleted d));
    END IF;
    RETURN NULL;
END $$;

-- Removes old entries, one step at a time: of the first journals after _after that are over a bound, _window of them at most.
-- `goes_on` is where the next step begins; NULL: this was the last one. With _dry, what would be removed is counted.
CREATE FUNCTION prune_journals(
    _age float8, _entries bigint, _size bigint, _limit bigint, _after bigint, _window bigint, _dry boolean,
    OUT removed bigint, OUT goes_on bigint
) LANGUAGE plpgsql
-- The bounds decide which index serves.
SET plan_cache_mode = force_custom_plan SET search_path FROM CURRENT AS $$
DECLARE
    cutoff timestamptz := clock() - _age * interval '1 s';
    rest bigint := CASE WHEN _dry THEN 9223372036854775807 ELSE _limit END;
    seen bigint := 0;
    one bigint;
    j journals;
    low bigint;    -- behind the removed entries
    high bigint;   -- the last that may be removed
    upto bigint;   -- the last that is
    own bigint;    -- the same of its own
    bytes bigint;
    entry record;
    usage jsonb;
    writers text[];
    usages jsonb[];
BEGIN
    removed := 0;
    goes_on := _after;
    FOR one IN
        SELECT c.journal_id FROM (
            SELECT a.journal_id FROM journals a WHERE a.oldest_at < cutoff AND a.journal_id > _after
            UNION
            SELECT s.journal_id FROM journals s
            WHERE s.size_class >= (ln(greatest(_size, 65536)::float8) * 4)::smallint AND s.size > _size
              AND s.journal_id > _after
            UNION
            SELECT n.journal_id FROM journals n
            WHERE n.entries_class >= (ln(greatest(_entries, 64)::float8) * 4)::smallint
              AND n.last_seq - n.first_seq >= _entries AND n.journal_id > _after) o
        JOIN journals c USING (journal_id)
        WHERE c.session_id IS NOT NULL AND c.first_seq <= c.last_seq
          AND NOT EXISTS (
              SELECT FROM journals f WHERE f.base_id = c.journal_id AND f.first_seq <= least(f.base_seq, c.first_seq))
        ORDER BY c.journal_id LIMIT _window
    LOOP
        seen := seen + 1;
        -- A locked journal is left for the next round, so that this one waits for no other transaction. A journal that is about
        -- to continue this one holds a share of its key.
        IF _dry THEN
            SELECT * INTO j FROM journals c WHERE c.journal_id = one;
        ELSE
            SELECT * INTO j FROM journals c WHERE c.journal_id = one FOR UPDATE SKIP LOCKED;
        END IF;
        IF NOT FOUND THEN
            goes_on := one;
            CONTINUE;
        END IF;
        low := j.first_seq - 1;
        high := least((
            WITH RECURSIVE place AS (
                SELECT j.journal_id, j.base_id, j.base_seq, j.last_seq AS upto
                UNION ALL
                SELECT b.journal_id, b.base_id, b.base_seq, least(p.upto, p.base_seq)
                FROM place p JOIN journals b ON b.journal_id = p.base_id
                WHERE p.base_seq > j.processed
            )
            SELECT min(i.seq) - 1
            FROM place p CROSS JOIN LATERAL (
                SELECT e.seq FROM journal_entries e
                WHERE e.journal_id = p.journal_id AND e.is_input AND e.seq > j.processed AND e.seq <= p.upto
                ORDER BY e.seq LIMIT 1) i),
            (SELECT min(r.seq) - 1 FROM journal_requests r WHERE r.journal_id = one),
            (SELECT min(f.first_seq) - 1 FROM journals f WHERE f.base_id = one AND f.first_seq <= f.base_seq),
            j.last_seq);
        high := low + least(high - low, rest);
        upto := low;
        IF low < j.base_seq THEN
            upto := greatest(low, least(high, j.base_seq, CASE
                WHEN (j.created_at < cutoff) IS TRUE OR (j.size > _size) IS TRUE THEN j.base_seq
                ELSE coalesce(j.last_seq - _entries, 0) END));
        END IF;
        bytes := 0;
        IF upto >= coalesce(j.base_seq, 0) AND upto < high THEN
            SELECT max(e.seq) FILTER (WHERE e.goes), coalesce(sum(e.bytes) FILTER (WHERE e.goes), 0) INTO own, bytes
            FROM (
                SELECT e.seq, e.bytes, bool_and(e.goes) OVER (ORDER BY e.seq) AS goes
                FROM (
                    SELECT e.seq, octet_length(e.payload) AS bytes,
                        (e.recorded_at < cutoff) IS TRUE OR (e.seq <= j.last_seq - _entries) IS TRUE
                        OR (j.size - sum(octet_length(e.payload)) OVER (ORDER BY e.seq) + octet_length(e.payload)
                            > _size) IS TRUE AS goes
                    FROM (
                        SELECT * FROM journal_entries o
                        WHERE o.journal_id = one AND o.seq > upto AND o.seq <= high ORDER BY o.seq LIMIT rest) e) e) e;
            upto := coalesce(own, upto);
        END IF;
        removed := removed + greatest(upto - low, 0);
        rest := rest - greatest(upto - low, 0);
        IF upto > low AND NOT _dry THEN
            writers := '{}';
            usages := '{}';
            FOR entry IN
                SELECT regexp_replace(coalesce(e.wake_id, (
                        SELECT w.wake_id FROM journal_entries w
                        WHERE w.journal_id = e.journal_id AND w.seq > e.seq AND w.wake_id IS NOT NULL
                        ORDER BY w.seq LIMIT 1), ''), '-[^-]*-[^-]*$', '') AS writer, e.payload
                FROM find_entries(one, low, upto + 1, '{}', NULL, NULL, false, false, upto - low) o
                -- OFFSET 0: by the key, whatever statistics say of the number of entries.
                CROSS JOIN LATERAL (
                    SELECT n.* FROM journal_entries n WHERE n.journal_id = o.owner AND n.seq = o.seq OFFSET 0) e
                WHERE e.payload LIKE '%"usage"%'
                ORDER BY e.seq
            LOOP
                BEGIN
                    -- jsonb has no NUL.
                    usage := replace(entry.payload, '\u0000', '\u0001')::jsonb -> 'usage';
                EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
                    CONTINUE; -- a payload that the database cannot read stops no retention
                END;
                IF jsonb_typeof(usage) = 'object' THEN
                    writers := writers || entry.writer;
                    usages := usages || usage;
                END IF;
            END LOOP;
            UPDATE journals c SET used = c.used || added.used
            FROM (
                SELECT jsonb_object_agg(w.writer, jsonb_build_array(
                    w.entries + coalesce((j.used -> w.writer ->> 0)::bigint, 0),
                    coalesce(j.used -> w.writer -> 1, '{}') || (
                        SELECT coalesce(jsonb_object_agg(n.name, n.total), '{}') FROM (
                            SELECT v.key AS name,
                                sum(v.value::numeric) + coalesce((j.used -> w.writer -> 1 ->> v.key)::numeric, 0) AS total
                            FROM unnest(writers, usages) AS u (writer, usage) CROSS JOIN LATERAL jsonb_each(u.usage) v
                            WHERE u.writer = w.writer AND jsonb_typeof(v.value) = 'number'
                            GROUP BY v.key) n))) AS used
                FROM (SELECT u.writer, count(*) AS entries FROM unnest(writers) AS u (writer) GROUP BY u.writer) w
            ) added
            WHERE c.journal_id = one AND added.used IS NOT NULL;
            DELETE FROM journal_entries e WHERE e.journal_id = one AND e.seq > low AND e.seq <= upto;
            UPDATE journals c
            SET first_seq = upto + 1, size = c.size - bytes,
                oldest_at = CASE WHEN upto < c.base_seq THEN c.oldest_at ELSE coalesce(
                    (SELECT e.recorded_at FROM journal_entries e WHERE e.journal_id = one AND e.seq > upto
                     ORDER BY e.seq LIMIT 1), clock()) END
            WHERE c.journal_id = one;
        END IF;
        IF rest <= 0 THEN
            RETURN; -- there may be more of this journal
        END IF;
        goes_on := one;
    END LOOP;
    IF seen < _window THEN
        goes_on := NULL;
    END IF;
END $$;

CREATE TRIGGER journal_deleted_with_record AFTER DELETE ON session_states
REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION delete_journal_of_record();

-- Turns and wakes: what a worker commits in one transaction.

-- The fence of a turn: its instance is the worker's, and where the worker knows it.
CREATE FUNCTION passes_fence(i instances, _worker text, _incarnation text, _generation text, _execution bigint, _events bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT i.owner_worker = _worker AND i.owner_incarnation = _incarnation AND i.status IN ('pending', 'running')
        AND i.generation = _generation AND i.execution_id = _execution AND i.event_count = _events
$$;

-- Sessions of results and of work to be locked by the caller that it holds, with their epochs; and by item, unless all of
-- them were locked to the caller: whether it was, and which worker holds its session. A type: for OUT parameters
-- PostgreSQL reads the names of all parameters at every call.
CREATE TYPE committed AS (held text[], epochs bigint[], locked boolean[], holders text[]);

-- Commits a batch of turns, all of them or none. A column *_turn holds, by element, the number of the turn that it
-- belongs to, from 1. Columns that a batch has no use for are NULL; columns of one group are all there or none of them:
-- placement, updates, removals with children and messages, holds with watches, states.
--
-- Nearly all turns pass, so nothing is asked first. Rows are written where they are as they must be, and the rows are
-- counted. If one is missing, an error undoes everything (`refuse`); the caller asks which turns do not pass
-- (`check_fences` in turns.sql) and commits the others.
--
-- Rows are locked in the order that all verbs keep: instances, worker_queue, sessions, session_states, each by key.
-- Turns, acks and states come in the order of their keys. Each statement has a snapshot of its own: it sees the locked rows as
-- they are then, and the writes of the statements before it.
--
-- An INSERT reads the time beforehand: with a volatile function among its columns it would be started as two plans.
CREATE FUNCTION commit_turns(
    _worker text, _incarnation text, _token text,
    _item_lock float8, _session_lock float8, _touch_below float8,
    _instance text[], _generation text[], _execution bigint[], _events bigint[], _added bigint[],
    _event_turn bigint[], _event_id bigint[], _event text[],
    _ack_instance text[], _ack_execution bigint[], _ack_activity bigint[], _ack_token text[],
    -- New work, and the sessions of the items that the caller is to lock, each once, in order.
    _item_turn bigint[], _item_activity bigint[], _item_name text[], _item_session text[], _item_payload text[],
    _here text[],
    -- Placement. NULL: all items are visible immediately and to be locked by the caller.
    _item_here boolean[] = NULL, _item_claim boolean[] = NULL, _item_delay float8[] = NULL,
    -- Updates: what a turn says of its instance beyond its history.
    _status text[] = NULL, _version text[] = NULL, _custom_status text[] = NULL, _output text[] = NULL,
    _error text[] = NULL, _continued boolean[] = NULL, _unread bigint[] = NULL,
    -- Removals, instances that finish, children and messages.
    _consume_turn bigint[] = NULL, _consume_id bigint[] = NULL,
    _cancel_turn bigint[] = NULL, _cancel_activity bigint[] = NULL,
    _timer_turn bigint[] = NULL, _timer_id bigint[] = NULL, _finish text[] = NULL,
    _child_instance text[] = NULL, _child_generation text[] = NULL, _child_name text[] = NULL, _child_version text[] = NULL,
    _child_start text[] = NULL, _child_delay float8[] = NULL, _child_parent text[] = NULL,
    _child_on_exists text[] = NULL, _child_parent_generation text[] = NULL, _child_on_deleted text[] = NULL,
    _child_session text[] = NULL,
    _message_instance text[] = NULL, _message_generation text[] = NULL, _message text[] = NULL,
    _message_delay float8[] = NULL, _message_execution bigint[] = NULL, _message_timer bigint[] = NULL,
    -- Holds and watches, and instances whose execution ends.
    _hold_turn bigint[] = NULL, _hold_id bigint[] = NULL, _hold_session text[] = NULL, _hold_seconds float8[] = NULL,
    _unhold_turn bigint[] = NULL, _unhold_id bigint[] = NULL, _end text[] = NULL,
    _watch_turn bigint[] = NULL, _watch_session text[] = NULL, _watch text[] = NULL,
    -- States of sessions.
    _state_session text[] = NULL, _state_base bigint[] = NULL, _state_epoch bigint[] = NULL, _state bytea[] = NULL,
    _state_encoding text[] = NULL, _state_schema bigint[] = NULL, _state_kind text[] = NULL, _state_name text[] = NULL,
    _state_parent text[] = NULL, _state_labels text[] = NULL, _state_messages bigint[] = NULL,
    _state_participants text[] = NULL,
    -- Runs of activities, by event.
    _run_worker text[] = NULL, _run_attempt bigint[] = NULL,
    -- Ordered items: their sessions, NULL for items that are not ordered. With placement.
    _item_order text[] = NULL
) RETURNS committed LANGUAGE plpgsql AS $$
DECLARE
    held text[]; epochs bigint[]; locked boolean[]; holders text[]; routes text[];
    acked text[];         -- sessions of results
    ending text[];        -- sessions whose holds end
    earliest timestamptz; -- end of the first lock on a held session
    may_lock boolean;     -- false: draining; NULL: the worker's lease has ended
    numbers bigint[];     -- places of ordered items
    blocked boolean[];    -- whether another one is before them
    passed bigint;
    added bigint;
    moment timestamptz;
BEGIN
    IF _status IS NULL THEN
        UPDATE instances i
        SET event_count = i.event_count + _added[t.n], claims = 0, unknown_since = NULL, updated_at = clock()
        FROM unnest(_instance) WITH ORDINALITY AS t (instance_id, n)
        WHERE i.instance_id = t.instance_id
          AND passes_fence(i, _worker, _incarnation, _generation[t.n], _execution[t.n], _events[t.n]);
    ELSE
        UPDATE instances i
        SET execution_id = i.execution_id + _continued[t.n]::int,
            event_count = CASE WHEN _continued[t.n] THEN 0 ELSE i.event_count + _added[t.n] END,
            status = coalesce(_status[t.n], i.status), version = coalesce(_version[t.n], i.version),
            custom_status = coalesce(_custom_status[t.n], i.custom_status), output = coalesce(_output[t.n], i.output),
            error = coalesce(_error[t.n], i.error), unread = coalesce(_unread[t.n], i.unread), claims = 0,
            unknown_since = NULL, updated_at = clock()
        FROM unnest(_instance) WITH ORDINALITY AS t (instance_id, n)
        WHERE i.instance_id = t.instance_id
          AND passes_fence(i, _worker, _incarnation, _generation[t.n], _execution[t.n], _events[t.n]);
    END IF;
    GET DIAGNOSTICS passed = ROW_COUNT;
    IF passed < cardinality(_instance) THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    INSERT INTO history (instance_id, execution_id, event_id, event, recorded_at, recorded_events, recorded_by, run_by,
        attempt)
    SELECT _instance[e.n], _execution[e.n], _event_id[e.k], _event[e.k],
        CASE WHEN _event_id[e.k] = _events[e.n] + 1 THEN moment END,
        CASE WHEN _event_id[e.k] = _events[e.n] + 1 THEN _added[e.n] END,
        CASE WHEN _event_id[e.k] = _events[e.n] + 1 THEN _worker END,
        _run_worker[e.k], _run_attempt[e.k]
    FROM unnest(_event_turn) WITH ORDINALITY AS e (n, k);

    IF _finish IS NOT NULL THEN
        -- Children are instances, so they come here in the order of locks, and before messages to them.
        IF _child_instance <> '{}' THEN
            PERFORM add_instances(_child_instance, _child_generation, _child_name, _child_version, _child_start,
                _child_parent, _child_parent_generation, _child_delay, _child_on_exists, _child_on_deleted, _child_session);
        END IF;
        -- More than results is removed, so all of it is locked by key before anything is.
        PERFORM FROM (
            SELECT a.instance_id, _ack_execution[a.k] AS execution_id, _ack_activity[a.k] AS activity_id
            FROM unnest(_ack_instance) WITH ORDINALITY AS a (instance_id, k)
            UNION
            SELECT _instance[c.n], _execution[c.n], _cancel_activity[c.k]
            FROM unnest(_cancel_turn) WITH ORDINALITY AS c (n, k)
            UNION
            -- OFFSET 0: one instance after the other, though statistics may say that any instance has most of the queue.
            SELECT q.instance_id, q.execution_id, q.activity_id
            FROM unnest(_finish) AS f (instance_id)
            CROSS JOIN LATERAL (SELECT * FROM worker_queue WHERE instance_id = f.instance_id OFFSET 0) q
        ) d JOIN worker_queue q USING (instance_id, execution_id, activity_id)
        ORDER BY q.instance_id, q.execution_id, q.activity_id FOR UPDATE OF q;
    END IF;
    IF _item_order IS NOT NULL THEN
        PERFORM lock_order(_item_order);
    END IF;
    WITH removed AS (
        DELETE FROM worker_queue q
        USING unnest(_ack_instance) WITH ORDINALITY AS a (instance_id, k)
        WHERE q.instance_id = a.instance_id AND q.execution_id = _ack_execution[a.k]
          AND q.activity_id = _ack_activity[a.k] AND q.lock_token = _ack_token[a.k] AND q.locked_until > clock()
        RETURNING q.session_id
    )
    SELECT count(*), array_agg(r.session_id) INTO passed, acked FROM removed r;
    IF _state_session IS NOT NULL OR _end IS NOT NULL THEN
        -- All rows of sessions that are written below, or must not move while they are judged or watched. No other
        -- transaction changes the holds of an instance whose row is locked.
        ending := ARRAY(
            SELECT h.session_id
            FROM unnest(_unhold_turn) WITH ORDINALITY AS u (n, k)
            JOIN session_holds h ON h.instance_id = _instance[u.n] AND h.execution_id = _execution[u.n]
                                AND h.hold_id = _unhold_id[u.k]
            UNION
            SELECT h.session_id FROM unnest(_end) AS e (instance_id) JOIN session_holds h USING (instance_id));
        PERFORM FROM sessions s
        WHERE s.session_id = ANY (acked || _here || _state_session || ending || _hold_session || _watch_session)
        ORDER BY s.session_id FOR NO KEY UPDATE;
    END IF;
    -- Sessions that the caller holds, and holds until the commit.
    SELECT array_agg(h.session_id), array_agg(h.epoch), min(h.locked_until), (
            SELECT NOT w.draining FROM alive_workers w
            WHERE w.worker_id = _worker AND w.incarnation = _incarnation)
    INTO held, epochs, earliest, may_lock
    FROM (
        SELECT s.session_id, s.epoch, s.locked_until FROM sessions s
        WHERE s.session_id = ANY (acked || _here) AND keeps_session(s, _worker, _incarnation)
        ORDER BY s.session_id FOR NO KEY UPDATE) h;
    IF passed < cardinality(_ack_token) OR may_lock IS NULL THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    IF earliest < moment + _touch_below * interval '1 s' THEN
        UPDATE sessions s SET locked_until = moment + _session_lock * interval '1 s', touched_at = moment
        WHERE s.session_id = ANY (held) AND s.locked_until < moment + _touch_below * interval '1 s';
    END IF;

    -- New work: locked to the caller where that is asked and right, else left to the holder of its session. Items of one
    -- batch are a microsecond apart, so that they are delivered in their order.
    IF _item_here IS NULL AND may_lock AND (held = _here OR held @> _here OR _here = '{}') THEN
        INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
            lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at)
        SELECT _instance[w.n], _execution[w.n], _item_activity[w.k], _item_name[w.k], _item_session[w.k],
            CASE WHEN _item_session[w.k] IS NULL THEN 'free' ELSE 'w:' || _worker END,
            moment + w.k * interval '1 us', _item_payload[w.k],
            _worker, _incarnation, _token || '.' || w.k, moment + _item_lock * interval '1 s', 1, moment
        FROM unnest(_item_turn) WITH ORDINALITY AS w (n, k);
    ELSE
        IF _item_order IS NOT NULL THEN
            SELECT p.numbers, p.blocked INTO numbers, blocked FROM places_in_order(_item_order) p;
        END IF;
        SELECT array_agg(p.locked ORDER BY p.k), array_agg(p.holder ORDER BY p.k), array_agg(p.route ORDER BY p.k)
        INTO locked, holders, routes
        FROM (
            SELECT w.k, s.holder, s.route,
                (_item_here IS NULL OR _item_here[w.k] AND _item_delay[w.k] <= 0) AND may_lock
                -- With the epoch as it is, or not at all: a writer without a lease gives the session another.
                AND (w.session_id IS NULL OR (s.session_id = ANY (held)) IS TRUE) AND blocked[w.k] IS NOT TRUE AS locked
            FROM unnest(_item_session) WITH ORDINALITY AS w (session_id, k)
            LEFT JOIN session_routes s ON s.session_id = w.session_id) p;
        INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
            lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at, order_session, order_number)
        SELECT _instance[w.n], _execution[w.n], _item_activity[w.k], _item_name[w.k],
            CASE WHEN blocked[w.k] IS NOT TRUE THEN _item_session[w.k] END,
            CASE WHEN blocked[w.k] THEN 'blocked'
                 WHEN _item_session[w.k] IS NULL THEN 'free'
                 WHEN routes[w.k] IS NOT NULL THEN routes[w.k]
                 WHEN _item_claim[w.k] AND _item_delay[w.k] <= 0 THEN 'new:' || _worker ELSE 'new' END,
            moment + (coalesce(_item_delay[w.k], 0) * interval '1 s' + w.k * interval '1 us'),
            _item_payload[w.k],
            CASE WHEN locked[w.k] THEN _worker END, CASE WHEN locked[w.k] THEN _incarnation END,
            CASE WHEN locked[w.k] THEN _token || '.' || w.k END,
            CASE WHEN locked[w.k] THEN moment + _item_lock * interval '1 s' END, locked[w.k]::int, moment,
            _item_order[w.k], numbers[w.k]
        FROM unnest(_item_turn) WITH ORDINALITY AS w (n, k);
    END IF;

    IF _state_session IS NOT NULL THEN
        UPDATE session_states r
        SET state = _state[w.k], encoding = _state_encoding[w.k], schema_version = _state_schema[w.k],
            kind = _state_kind[w.k], name = _state_name[w.k], parent = _state_parent[w.k],
            labels = _state_labels[w.k]::jsonb, message_count = _state_messages[w.k],
            participants = _state_participants[w.k]::jsonb, version = r.version + 1, epoch = _state_epoch[w.k],
            turn = NULL, updated_at = clock()
        FROM unnest(_state_session) WITH ORDINALITY AS w (session_id, k)
        WHERE r.session_id = w.session_id AND r.version = _state_base[w.k]
          AND (r.epoch > _state_epoch[w.k]) IS NOT TRUE
          AND NOT EXISTS (SELECT FROM sessions s WHERE s.session_id = w.session_id AND s.epoch > _state_epoch[w.k]);
        GET DIAGNOSTICS passed = ROW_COUNT;
        -- Plain: should another transaction write the first version too, one of the two fails (errors.py: Contention).
        INSERT INTO session_states (session_id, state, encoding, schema_version, kind, name, parent, labels,
            message_count, participants, version, epoch, created_at, updated_at)
        SELECT w.session_id, _state[w.k], _state_encoding[w.k], _state_schema[w.k], _state_kind[w.k], _state_name[w.k],
            _state_parent[w.k], _state_labels[w.k]::jsonb, _state_messages[w.k], _state_participants[w.k]::jsonb, 1,
            _state_epoch[w.k], moment, moment
        FROM unnest(_state_session) WITH ORDINALITY AS w (session_id, k)
        WHERE _state_base[w.k] = 0
          AND NOT EXISTS (SELECT FROM sessions s WHERE s.session_id = w.session_id AND s.epoch > _state_epoch[w.k]);
        GET DIAGNOSTICS added = ROW_COUNT;
        IF passed + added < cardinality(_state_session) THEN
            PERFORM refuse();
        END IF;
    END IF;

    IF _end IS NOT NULL THEN
        DELETE FROM session_holds h USING unnest(_unhold_turn) WITH ORDINALITY AS u (n, k)
        WHERE h.instance_id = _instance[u.n] AND h.execution_id = _execution[u.n] AND h.hold_id = _unhold_id[u.k];
        DELETE FROM session_holds h WHERE h.instance_id = ANY (_end);
        -- Where a hold has ended, the lock is cut back to the latest one that is left.
        UPDATE sessions s SET locked_until = b.until
        FROM (
            SELECT e.session_id, greatest(clock() + _session_lock * interval '1 s', max(h.until)) AS until
            FROM unnest(ending) AS e (session_id) LEFT JOIN session_holds h USING (session_id)
            GROUP BY e.session_id) b
        WHERE s.session_id = b.session_id AND s.locked_until > b.until;
        INSERT INTO session_holds (instance_id, execution_id, hold_id, session_id, until, session_lock)
        SELECT _instance[h.n], _execution[h.n], _hold_id[h.k], _hold_session[h.k],
            clock() + _hold_seconds[h.k] * interval '1 s', _session_lock
        FROM unnest(_hold_turn) WITH ORDINALITY AS h (n, k)
        ON CONFLICT (instance_id, execution_id, hold_id) DO UPDATE
        SET session_id = excluded.session_id, until = excluded.until, session_lock = excluded.session_lock;
        UPDATE sessions s SET locked_until = clock() + x.seconds * interval '1 s'
        FROM (
            SELECT h.session_id, max(_hold_seconds[h.k]) AS seconds
            FROM unnest(_hold_session) WITH ORDINALITY AS h (session_id, k) JOIN held_sessions USING (session_id)
            GROUP BY h.session_id) x
        WHERE s.session_id = x.session_id AND s.locked_until < clock() + x.seconds * interval '1 s';
        INSERT INTO session_watches (session_id, instance_id, payload)
        SELECT w.session_id, _instance[_watch_turn[w.k]], _watch[w.k]
        FROM unnest(_watch_session) WITH ORDINALITY AS w (session_id, k)
        ON CONFLICT (session_id, instance_id) DO UPDATE SET payload = excluded.payload;
    END IF;

    IF _finish IS NOT NULL THEN
        -- Removals come last, for they may be of what this batch has queued.
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
        SELECT m.instance_id, r.route, moment + _message_delay[m.k] * interval '1 s', _message[m.k],
            _message_execution[m.k], _message_timer[m.k]
        FROM unnest(_message_instance) WITH ORDINALITY AS m (instance_id, k) JOIN message_routes r USING (instance_id)
        WHERE _message_generation[m.k] IS NULL OR r.generation = _message_generation[m.k]
        ORDER BY m.k;
        -- An id alone does not say whose message it is: after a failover that lost the last commits it may be another's.
        DELETE FROM orchestrator_queue o USING unnest(_consume_turn) WITH ORDINALITY AS c (n, k)
        WHERE o.id = _consume_id[c.k] AND o.instance_id = _instance[c.n];
        DELETE FROM orchestrator_queue o USING unnest(_timer_turn) WITH ORDINALITY AS t (n, k)
        WHERE o.instance_id = _instance[t.n] AND o.timer_execution = _execution[t.n] AND o.timer_id = _timer_id[t.k];
        DELETE FROM orchestrator_queue WHERE instance_id = ANY (_finish);
        DELETE FROM worker_queue q USING unnest(_cancel_turn) WITH ORDINALITY AS c (n, k)
        WHERE q.instance_id = _instance[c.n] AND q.execution_id = _execution[c.n]
          AND q.activity_id = _cancel_activity[c.k];
        DELETE FROM worker_queue WHERE instance_id = ANY (_finish);
        DELETE FROM session_watches WHERE instance_id = ANY (_finish);
    END IF;
    RETURN (held, epochs, locked, holders);
END $$;

-- One turn that takes one result: of an activity, and queues one item of the same session (or also without one) that is to run
-- here, or of a wake, with what that adds to its journal and with the state of its session. The batch of a worker that has little
-- to do: its time is what starts statements, and arrays of one element make that half as much again.

-- Commits such a turn as `commit_turns`, `write_journals` and `park_items` do, or raises `refuse`: also when the item is not to
-- be locked to the caller, or may not be parked, and when the state is of another session than the result, or of a session
-- without a row; then these functions commit it. The entries are of this wake; none is an input, and none has an event id. A
-- parked item is of the instance whose journal this is. Returns the epoch of the result's session.
CREATE FUNCTION commit_turn(
    _worker text, _incarnation text, _session_lock float8, _touch_below float8,
    _instance text, _generation text, _execution bigint, _events bigint, _event text[],
    _ack_activity bigint, _ack_token text,
    -- New work.
    _token text = NULL, _item_lock float8 = NULL,
    _item_activity bigint = NULL, _item_name text = NULL, _item_session text = NULL, _item_payload text = NULL,
    -- The wake.
    _session text = NULL, _journal bigint = NULL, _base bigint = NULL, _processed bigint = NULL, _wake text = NULL,
    _attempt bigint = NULL, _entry_kind text[] = NULL, _entry text[] = NULL, _size bigint = NULL, _clear boolean = NULL,
    _state_session text = NULL, _state_base bigint = NULL, _state_epoch bigint = NULL, _state bytea = NULL,
    _state_encoding text = NULL, _state_schema bigint = NULL, _state_kind text = NULL, _state_name text = NULL,
    _state_parent text = NULL, _state_labels text = NULL, _state_messages bigint = NULL,
    _state_participants text = NULL,
    _parked_activity bigint = NULL, _parked_name text = NULL, _parked_session text = NULL, _parked_payload text = NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    acked text;             -- session of the result
    session_epoch bigint;
    held_until timestamptz; -- NULL: the caller does not hold it
    may_lock boolean;       -- false: draining; NULL: the worker's lease has ended
    last bigint;            -- last entry of the journal before the wake's entries
    inherited bigint;       -- last entry that the journal has from another one
    moment timestamptz;
BEGIN
    UPDATE instances i
    SET event_count = i.event_count + cardinality(_event), claims = 0, unknown_since = NULL, updated_at = clock()
    WHERE i.instance_id = _instance AND passes_fence(i, _worker, _incarnation, _generation, _execution, _events);
    IF NOT FOUND THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    INSERT INTO history (instance_id, execution_id, event_id, event, recorded_at, recorded_events, recorded_by)
    SELECT _instance, _execution, _events + e.k, e.event,
        CASE WHEN e.k = 1 THEN moment END,
        CASE WHEN e.k = 1 THEN cardinality(_event) END,
        CASE WHEN e.k = 1 THEN _worker END
    FROM (SELECT generate_series(1, cardinality(_event)) AS k, unnest(_event) AS event) e;

    DELETE FROM worker_queue q
    WHERE q.instance_id = _instance AND q.execution_id = _execution AND q.activity_id = _ack_activity
      AND q.lock_token = _ack_token AND q.locked_until > clock()
    RETURNING q.session_id INTO acked;
    IF NOT FOUND THEN
        PERFORM refuse();
    END IF;
    IF acked IS NOT NULL THEN
        SELECT s.epoch, CASE WHEN keeps_session(s, _worker, _incarnation) THEN s.locked_until END
        INTO session_epoch, held_until FROM sessions s WHERE s.session_id = acked FOR NO KEY UPDATE;
    END IF;
    SELECT NOT w.draining INTO may_lock FROM alive_workers w WHERE w.worker_id = _worker AND w.incarnation = _incarnation;
    IF may_lock IS NULL
       OR _item_activity IS NOT NULL
          AND (NOT may_lock OR _item_session IS DISTINCT FROM acked OR acked IS NOT NULL AND held_until IS NULL)
       OR _state_session IS NOT NULL AND (_state_session = acked AND session_epoch <= _state_epoch) IS NOT TRUE THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    IF held_until < moment + _touch_below * interval '1 s' THEN
        UPDATE sessions s SET locked_until = moment + _session_lock * interval '1 s', touched_at = moment
        WHERE s.session_id = acked;
    END IF;

    IF _item_activity IS NOT NULL THEN
        INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
            lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at)
        VALUES (_instance, _execution, _item_activity, _item_name, _item_session,
            CASE WHEN _item_session IS NULL THEN 'free' ELSE 'w:' || _worker END, moment, _item_payload,
            _worker, _incarnation, _token, moment + _item_lock * interval '1 s', 1, moment);
        RETURN session_epoch;
    END IF;
    IF _state_session IS NOT NULL THEN
        UPDATE session_states r
        SET state = _state, encoding = _state_encoding, schema_version = _state_schema, kind = _state_kind,
            name = _state_name, parent = _state_parent, labels = _state_labels::jsonb,
            message_count = _state_messages, participants = _state_participants::jsonb, version = r.version + 1,
            epoch = _state_epoch, turn = NULL, updated_at = clock()
        WHERE r.session_id = _state_session AND r.version = _state_base AND (r.epoch > _state_epoch) IS NOT TRUE;
        IF NOT FOUND THEN
            PERFORM refuse();
        END IF;
    END IF;

    UPDATE journals j
    SET processed = _processed, last_seq = j.last_seq + cardinality(_entry), size = j.size + _size,
        ended_wake = _wake, ended_attempt = CASE WHEN j.ended_wake = _wake
            THEN greatest(j.ended_attempt, _attempt) ELSE _attempt END,
        updated_at = clock()
    WHERE j.session_id = _session AND j.journal_id = _journal AND j.processed = _base
    RETURNING j.last_seq - cardinality(_entry), j.base_seq INTO last, inherited;
    IF NOT FOUND THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, wake_id, payload)
    SELECT _journal, last + e.k, moment, false, e.kind, _wake, e.entry
    FROM (
        SELECT generate_series(1, cardinality(_entry)) AS k, unnest(_entry_kind) AS kind, unnest(_entry) AS entry) e;
    IF _clear THEN
        DELETE FROM journal_streams s WHERE s.journal_id = _journal;
    END IF;

    IF _parked_activity IS NOT NULL THEN
        PERFORM FROM journal_entries e WHERE e.journal_id = _journal AND e.is_input AND e.seq > _processed LIMIT 1;
        IF FOUND OR _processed < inherited THEN
            PERFORM refuse();
        END IF;
        -- No other transaction adds the row of an instance that is locked.
        UPDATE parked_items a
        SET generation = _generation, execution_id = _execution, activity_id = _parked_activity, name = _parked_name,
            session_id = _parked_session, payload = _parked_payload, parked = true
        WHERE a.instance_id = _instance;
        IF NOT FOUND THEN
            INSERT INTO parked_items (instance_id, generation, execution_id, activity_id, name, session_id, payload, parked)
            VALUES (_instance, _generation, _execution, _parked_activity, _parked_name, _parked_session, _parked_payload,
                true);
        END IF;
    END IF;
    RETURN session_epoch;
END $$;

-- Writes what wakes add to their journals: see `JournalWrite`. The writes come in the order of the keys of their sessions, at
-- most one of each. An entry belongs to the write of number _entry_write, and is the one of number _entry_place there;
-- _added and _size are the number of a write's entries and their bytes. Columns that a batch has no use for are NULL. `_rare`
-- has new and ended requests and revisits. `_also` has the sessions of other journals that the statement appends to afterwards:
-- all are locked together. With `_only`, writes of other numbers are left out.
CREATE FUNCTION write_journals(
    _session text[], _journal bigint[], _base bigint[], _processed bigint[], _wake text[], _attempt bigint[],
    _added bigint[], _size bigint[],
    _entry_write bigint[], _entry_place bigint[], _entry_kind text[], _entry_wake text[], _entry text[],
    _entry_event text[] = NULL, _entry_input boolean[] = NULL, _clear bigint[] = NULL, _rare json = NULL,
    _also text[] = NULL, _only bigint[] = NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    passed bigint := 0; place bigint; last bigint; lasts bigint[];
    cleared bigint[];
BEGIN
    IF _entry_event IS NOT NULL OR _also IS NOT NULL THEN
        PERFORM FROM journals j WHERE j.session_id = ANY (_session || _also) ORDER BY j.session_id FOR NO KEY UPDATE;
    END IF;
    IF _entry_event IS NOT NULL THEN
        -- Entries whose event id is there are left out, and so are others with the same one behind the first.
        WITH entry AS MATERIALIZED (
            SELECT w.n, w.k, w.copy = 1 AND coalesce(
                (SELECT e.seq FROM journal_entries e WHERE e.journal_id = _journal[w.n] AND e.event_id = _entry_event[w.k]),
                CASE WHEN (SELECT j.base_id FROM journals j WHERE j.journal_id = _journal[w.n]) IS NOT NULL
                     THEN find_inherited_event(_journal[w.n], _entry_event[w.k]) END) IS NULL AS is_new
            FROM (
                SELECT e.n, e.k, row_number() OVER (
                    PARTITION BY e.n, coalesce(_entry_event[e.k], ''), CASE WHEN _entry_event[e.k] IS NULL THEN e.k END
                    ORDER BY e.k) AS copy
                FROM unnest(_entry_write) WITH ORDINALITY AS e (n, k)) w
        ), placed AS MATERIALIZED (
            SELECT e.n, e.k, row_number() OVER (PARTITION BY e.n ORDER BY e.k) AS place FROM entry e WHERE e.is_new
        )
        SELECT ARRAY (SELECT p.place FROM entry e LEFT JOIN placed p ON p.k = e.k ORDER BY e.k),
            ARRAY (
                SELECT (SELECT count(*) FROM placed p WHERE p.n = w.n)
                FROM unnest(_session) WITH ORDINALITY AS w (session_id, n) ORDER BY w.n),
            ARRAY (
                SELECT (SELECT coalesce(sum(octet_length(_entry[p.k])), 0) FROM placed p WHERE p.n = w.n)
                FROM unnest(_session) WITH ORDINALITY AS w (session_id, n) ORDER BY w.n)
        INTO _entry_place, _added, _size;
    END IF;
    FOR place, last IN
        UPDATE journals j
        SET processed = _processed[w.n], last_seq = j.last_seq + _added[w.n], size = j.size + _size[w.n],
            ended_wake = _wake[w.n], ended_attempt = CASE WHEN j.ended_wake = _wake[w.n]
                THEN greatest(j.ended_attempt, _attempt[w.n]) ELSE _attempt[w.n] END,
            updated_at = clock()
        FROM unnest(_session) WITH ORDINALITY AS w (session_id, n)
        WHERE j.session_id = w.session_id AND j.journal_id = _journal[w.n] AND j.processed = _base[w.n]
          AND (_only IS NULL OR w.n = ANY (_only))
        RETURNING w.n, j.last_seq - _added[w.n]
    LOOP
        lasts[place] := last;
        passed := passed + 1;
    END LOOP;
    IF passed < cardinality(coalesce(_only, _journal)) THEN
        PERFORM refuse();
    END IF;
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload)
    SELECT _journal[e.n], lasts[e.n] + _entry_place[e.k], (SELECT clock()), coalesce(_entry_input[e.k], false),
        _entry_kind[e.k], _entry_event[e.k], _entry_wake[e.k], _entry[e.k]
    FROM unnest(_entry_write) WITH ORDINALITY AS e (n, k)
    WHERE lasts[e.n] IS NOT NULL AND _entry_place[e.k] IS NOT NULL;
    IF _clear IS NOT NULL THEN
        cleared := ARRAY (SELECT _journal[c.n] FROM unnest(_clear) AS c (n) WHERE _only IS NULL OR c.n = ANY (_only));
        DELETE FROM journal_streams s WHERE s.journal_id = ANY (cleared);
    END IF;
    IF _rare IS NOT NULL THEN
        DELETE FROM journal_requests r USING json_to_recordset(_rare -> 'ended_requests') AS x (n bigint, id text)
        WHERE r.journal_id = _journal[x.n] AND r.request_id = x.id AND (_only IS NULL OR x.n = ANY (_only));
        DELETE FROM journal_revisits r USING json_to_recordset(_rare -> 'ended_revisits') AS x (n bigint, key text)
        WHERE r.journal_id = _journal[x.n] AND r.key = x.key AND (_only IS NULL OR x.n = ANY (_only));
        INSERT INTO journal_requests (journal_id, request_id, kind, wake_id, seq, place, created_at, expires_at, payload)
        SELECT j.journal_id, x.id, x.kind, _wake[x.n], least(j.last_seq - _added[x.n] + 1, j.last_seq), x.k, c.now,
            c.now + x.expires_in * interval '1 s', x.payload
        FROM ROWS FROM (
            json_to_recordset(_rare -> 'requests') AS (n bigint, id text, kind text, payload text, expires_in float8)
        ) WITH ORDINALITY AS x (n, id, kind, payload, expires_in, k)
        JOIN journals j ON j.journal_id = _journal[x.n] CROSS JOIN (SELECT clock() AS now) c
        WHERE j.dropped_seq <= _processed[x.n] AND (_only IS NULL OR x.n = ANY (_only))
        ORDER BY x.k
        ON CONFLICT (journal_id, request_id) DO NOTHING;
        INSERT INTO journal_revisits (journal_id, key, due_at, priority, reason, note, wake_id)
        SELECT j.journal_id, x.key, clock() + x.delay * interval '1 s', x.priority, x.reason, x.note, _wake[x.n]
        FROM ROWS FROM (
            json_to_recordset(_rare -> 'revisits')
            AS (n bigint, key text, delay float8, priority bigint, reason text, note text)
        ) WITH ORDINALITY AS x (n, key, delay, priority, reason, note, k)
        JOIN journals j ON j.journal_id = _journal[x.n]
        WHERE j.dropped_seq <= _processed[x.n] AND (_only IS NULL OR x.n = ANY (_only))
        ORDER BY x.k
        ON CONFLICT (journal_id, key) DO NOTHING;
    END IF;
END $$;

-- Roles that `affinity migrate` was asked to give rights to, so that it gives them rights to later objects too. The rights
-- themselves are one table in affinity/provider/postgres/rights.py.
CREATE TABLE granted_roles (
    role text COLLATE "C" PRIMARY KEY,
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('client', 'worker', 'scaler'))
);
