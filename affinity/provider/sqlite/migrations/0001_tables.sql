-- The six tables of the contract, and one of counters.
--
-- Times are unix seconds. Queue tables have an integer key: it is the order of arrival, and it ends every index, so
-- that "by visibility, then by arrival" needs no sort. The lease columns of work items are in no index: renewing a lock
-- rewrites one row and nothing else. Payloads stand last, so that no other column is read past them.

CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- Epochs come from one counter for all sessions: a session whose row was cleaned up can never get an old epoch again.
INSERT INTO counters (name, value) VALUES ('epoch', 0), ('swept_at', 0), ('swept_clean', 0);

CREATE TABLE workers (
    worker_id    TEXT PRIMARY KEY,
    incarnation  TEXT NOT NULL,
    locked_until REAL NOT NULL,
    draining     INTEGER NOT NULL DEFAULT 0,
    started_at   REAL NOT NULL,
    labels       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
    session_id   TEXT PRIMARY KEY,
    worker_id    TEXT NOT NULL,
    incarnation  TEXT NOT NULL,
    epoch        INTEGER NOT NULL,
    locked_until REAL NOT NULL,
    touched_at   REAL NOT NULL,
    claimed_at   REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- Counting what a worker holds must not read the sessions that it once held. TOUCH_SLACK keeps writes of it rare.
CREATE INDEX sessions_by_worker ON sessions (worker_id, locked_until);

CREATE TABLE instances (
    instance_id       TEXT PRIMARY KEY,
    name              TEXT NOT NULL,
    version           TEXT,
    execution_id      INTEGER NOT NULL DEFAULT 1,
    status            TEXT NOT NULL DEFAULT 'pending',
    custom_status     TEXT,
    output            TEXT,
    error             TEXT,
    parent_id         TEXT,
    owner_worker      TEXT,
    owner_incarnation TEXT,
    claims            INTEGER NOT NULL DEFAULT 0,
    event_count       INTEGER NOT NULL DEFAULT 0,
    unknown_since     REAL,
    created_at        REAL NOT NULL,
    updated_at        REAL NOT NULL
) STRICT;

CREATE INDEX instances_by_age ON instances (created_at, instance_id);
CREATE INDEX instances_by_parent ON instances (parent_id, created_at, instance_id) WHERE parent_id IS NOT NULL;

CREATE TABLE history (
    instance_id  TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    event_id     INTEGER NOT NULL,
    event        TEXT NOT NULL,
    PRIMARY KEY (instance_id, execution_id, event_id)
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: workers name messages by id while they work on them, so an id must never come back.
CREATE TABLE orchestrator_queue (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    instance_id     TEXT NOT NULL,
    route           TEXT NOT NULL,
    visible_at      REAL NOT NULL,
    timer_execution INTEGER,
    timer_id        INTEGER,
    payload         TEXT NOT NULL
) STRICT;

CREATE INDEX orchestrator_queue_by_route ON orchestrator_queue (route, visible_at);
CREATE INDEX orchestrator_queue_by_instance ON orchestrator_queue (instance_id, visible_at);
CREATE INDEX orchestrator_queue_timers ON orchestrator_queue (instance_id, timer_execution, timer_id)
    WHERE timer_id IS NOT NULL;

CREATE TABLE worker_queue (
    id               INTEGER PRIMARY KEY,
    instance_id      TEXT NOT NULL,
    execution_id     INTEGER NOT NULL,
    activity_id      INTEGER NOT NULL,
    name             TEXT NOT NULL,
    session_id       TEXT,
    route            TEXT NOT NULL,
    visible_at       REAL NOT NULL,
    lock_worker      TEXT,
    lock_incarnation TEXT,
    lock_token       TEXT,
    locked_until     REAL,
    attempts         INTEGER NOT NULL DEFAULT 0,
    failures         INTEGER NOT NULL DEFAULT 0,
    unknown_since    REAL,
    enqueued_at      REAL NOT NULL,
    payload          TEXT NOT NULL,
    UNIQUE (instance_id, execution_id, activity_id)
) STRICT;

CREATE INDEX worker_queue_by_route ON worker_queue (route, visible_at);
CREATE INDEX worker_queue_by_session ON worker_queue (session_id, route) WHERE session_id IS NOT NULL;
