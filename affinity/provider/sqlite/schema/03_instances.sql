-- Instances, their history and their messages.

-- generation: tells two instances of one id apart, part of each fence. parent_generation: of the parent as it was when it
-- created the instance. on_deleted: sent to that parent when the instance is deleted before it has ended. session_id: that it
-- was started with; its children have it too. unread: messages that its turns have consumed and its code has not read.
CREATE TABLE instances (
    instance_id       TEXT PRIMARY KEY,
    generation        TEXT NOT NULL,
    name              TEXT NOT NULL,
    version           TEXT,
    execution_id      INTEGER NOT NULL DEFAULT 1,
    status            TEXT NOT NULL DEFAULT 'pending',
    custom_status     TEXT,
    output            TEXT,
    error             TEXT,
    parent_id         TEXT,
    parent_generation TEXT,
    on_deleted        TEXT,
    session_id        TEXT,
    owner_worker      TEXT, -- owns it, or did last
    owner_incarnation TEXT, -- NULL: given up
    claims            INTEGER NOT NULL DEFAULT 0,
    event_count       INTEGER NOT NULL DEFAULT 0,
    unread            INTEGER NOT NULL DEFAULT 0,
    unknown_since     REAL,
    created_at        REAL NOT NULL,
    updated_at        REAL NOT NULL
) STRICT;

CREATE INDEX instances_by_age ON instances (created_at, instance_id);
CREATE INDEX instances_by_parent ON instances (parent_id, created_at, instance_id) WHERE parent_id IS NOT NULL;
CREATE INDEX instances_by_session ON instances (session_id, created_at, instance_id) WHERE session_id IS NOT NULL;
CREATE INDEX instances_by_status ON instances (status, created_at, instance_id)
WHERE status IN ('suspended', 'failed', 'cancelled');

-- recorded_*: when and by which worker events were recorded (affinity/provider/rows.py). On the first event of each turn, with
-- the number of events that it stands for; NULL on the others. run_by: the worker that ran the activity, where it is not the
-- first attempt of recorded_by.
CREATE TABLE history (
    instance_id     TEXT NOT NULL,
    execution_id    INTEGER NOT NULL,
    event_id        INTEGER NOT NULL,
    event           TEXT NOT NULL,
    recorded_at     REAL,
    recorded_events INTEGER,
    recorded_by     TEXT,
    run_by          TEXT,
    attempt         INTEGER,
    queued_for      REAL, -- seconds that it had waited in the queue
    PRIMARY KEY (instance_id, execution_id, event_id)
) STRICT, WITHOUT ROWID;

-- Suspended instances: why, since when, and which code has tried. execution_id and event_count: where it was suspended; beyond
-- that point, no code has tried. tried: a JSON array of code versions; the last is `code`. The row stays when the instance is
-- resumed: it tells the code that has tried from the code that has not.
CREATE TABLE suspensions (
    instance_id  TEXT PRIMARY KEY,
    execution_id INTEGER NOT NULL,
    event_count  INTEGER NOT NULL,
    error_type   TEXT NOT NULL,
    message      TEXT NOT NULL,
    worker_id    TEXT NOT NULL,
    code         TEXT NOT NULL,
    tried        TEXT NOT NULL,
    needs_code   INTEGER NOT NULL,
    suspended_at REAL NOT NULL,
    resumed_at   REAL -- NULL: it is suspended
) STRICT, WITHOUT ROWID;

CREATE INDEX suspensions_lasting ON suspensions (suspended_at) WHERE resumed_at IS NULL;
CREATE INDEX suspensions_open ON suspensions (suspended_at) WHERE resumed_at IS NULL AND needs_code;

-- Executions that have ended, by the time of their end: with their instance (is_last), or because `continue_as_new` or a
-- reset began another one. Retention goes by this table.
CREATE TABLE ended_executions (
    instance_id  TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    is_last      INTEGER NOT NULL,
    ended_at     REAL NOT NULL,
    PRIMARY KEY (instance_id, execution_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX ended_histories ON ended_executions (ended_at) WHERE NOT is_last;
CREATE INDEX ended_instances ON ended_executions (ended_at) WHERE is_last;

-- How many bytes the first events of an execution have, so that each event is measured once. Only while there is a quota.
CREATE TABLE instance_sizes (
    instance_id  TEXT PRIMARY KEY,
    generation   TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    event_count  INTEGER NOT NULL,
    bytes        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Keys of messages, so that an instance gets one message of each, and the replies to these messages. They are removed with
-- their instance, or when they are old (`prune_histories`).
CREATE TABLE message_keys (
    id          INTEGER PRIMARY KEY,
    instance_id TEXT NOT NULL,
    generation  TEXT NOT NULL,
    key         TEXT NOT NULL,
    reply       TEXT,
    updated_at  REAL NOT NULL,
    UNIQUE (instance_id, generation, key)
) STRICT;

CREATE INDEX message_keys_by_age ON message_keys (updated_at);

-- Resources that outlive a process: see `ResourceStore` in affinity/records.py. What uses one is in the labels of records.
-- The activity is the one that began it, or uses it without a committed result. handle: NULL until it is created.
-- taken_until: it is being destroyed; NULL: it is not.
CREATE TABLE resources (
    resource_id  TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    instance_id  TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    activity_id  INTEGER NOT NULL,
    handle       TEXT,
    taken_until  REAL,
    created_at   REAL NOT NULL
) STRICT;

CREATE INDEX resources_by_activity ON resources (instance_id, execution_id, activity_id, name);
CREATE INDEX resources_by_name ON resources (name, created_at);
