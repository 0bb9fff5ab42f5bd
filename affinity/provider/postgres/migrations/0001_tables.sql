-- Everything lives in the schema that search_path names first, so no statement of this provider names a schema.

-- The one clock. PostgreSQL inlines the call, so it costs nothing; tests replace it (PostgresProvider.advance_clock).
-- VOLATILE on purpose: a condition that is checked again after a lock wait reads the time again.
CREATE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT clock_timestamp()';

-- Epochs of all sessions. A sequence knows no snapshot and forgets nothing: a session whose row was removed and made
-- anew can never meet an epoch that it had before.
CREATE SEQUENCE epochs AS bigint;

CREATE TABLE workers (
    worker_id text COLLATE "C" PRIMARY KEY,
    incarnation text COLLATE "C" NOT NULL,
    locked_until timestamptz NOT NULL,
    draining boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL,
    labels jsonb NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0.1);

-- locked_until and touched_at are in no index, here and below: extending a lock is a heap-only update.
CREATE TABLE sessions (
    session_id text COLLATE "C" PRIMARY KEY,
    worker_id text COLLATE "C" NOT NULL,
    incarnation text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    locked_until timestamptz NOT NULL,
    touched_at timestamptz NOT NULL,
    claimed_at timestamptz NOT NULL
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX sessions_worker ON sessions (worker_id);

CREATE TABLE instances (
    instance_id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    version text COLLATE "C",
    execution_id bigint NOT NULL DEFAULT 1,
    status text COLLATE "C" NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'running', 'completed', 'failed', 'cancelled')),
    custom_status text,
    output text,
    error text,
    parent_id text COLLATE "C",
    owner_worker text COLLATE "C",      -- owns it, or did last
    owner_incarnation text COLLATE "C", -- NULL: given up
    claims integer NOT NULL DEFAULT 0,
    event_count integer NOT NULL DEFAULT 0,
    unknown_since timestamptz,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX instances_created ON instances (created_at, instance_id);
CREATE INDEX instances_parent ON instances (parent_id, created_at) WHERE parent_id IS NOT NULL;

CREATE TABLE history (
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    event_id integer NOT NULL,
    event text NOT NULL,
    PRIMARY KEY (instance_id, execution_id, event_id)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);

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
-- With the timer, so that one of a thousand timers of an instance is found at once.
CREATE INDEX orchestrator_queue_instance ON orchestrator_queue (instance_id, timer_execution, timer_id);

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
    unknown_since timestamptz,
    enqueued_at timestamptz NOT NULL,
    PRIMARY KEY (instance_id, execution_id, activity_id)
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX worker_queue_route ON worker_queue (route, visible_at);
CREATE INDEX worker_queue_session ON worker_queue (session_id, route) WHERE session_id IS NOT NULL;

-- When the last sweep was, over all workers.
CREATE TABLE sweeps (last_sweep timestamptz NOT NULL) WITH (fillfactor = 50);
INSERT INTO sweeps VALUES ('-infinity');

-- The terms of the contract, each written once. PostgreSQL merges them into the statements that use them.
CREATE VIEW alive_workers AS
SELECT worker_id, incarnation, draining FROM workers WHERE locked_until > clock();

CREATE VIEW held_sessions AS
SELECT s.session_id, s.worker_id, s.incarnation, s.epoch, s.locked_until
FROM sessions s JOIN workers w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation
WHERE s.locked_until > clock() AND w.locked_until > clock();

-- Visible, and not in the hands of a live worker. The first condition reads the time once, so that an index serves it.
CREATE VIEW deliverable_items AS
SELECT q.* FROM worker_queue q
WHERE q.visible_at <= (SELECT clock())
  AND (q.lock_token IS NULL OR q.locked_until <= clock() OR NOT EXISTS (
      SELECT FROM workers w
      WHERE w.worker_id = q.lock_worker AND w.incarnation = q.lock_incarnation AND w.locked_until > clock()));
