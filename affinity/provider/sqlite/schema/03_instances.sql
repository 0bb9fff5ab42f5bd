-- Instances, their history and their messages.

-- generation: tells two instances of one id apart, part of each fence. parent_generation: of the parent as it was when it
-- created the instance. on_deleted: sent to that parent when the instance is deleted before it has ended. session_id: that it
-- was started with; its children have it too. unread: messages that its turns have consumed and its code has not read.
-- gate: at which its start message waits; NULL: it waits no longer. limited: the gate has limits, at which the instance keeps its
-- place until it ends. starts_at: when its delayed start message is visible, and messages to it are; NULL: it had no delay.
-- waits_since: when it was first started, if its start may still be replaced. next_start: a start that waits for its end, as JSON.
-- labels: texts by key, as JSON; NULL: it has none.
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
    updated_at        REAL NOT NULL,
    gate              TEXT,
    limited           INTEGER,
    starts_at         REAL,
    waits_since       REAL,
    next_start        TEXT,
    value_bytes       INTEGER NOT NULL DEFAULT 0, -- of `instance_values`
    labels            TEXT
) STRICT;

CREATE INDEX instances_next ON instances (instance_id) WHERE next_start IS NOT NULL;
CREATE INDEX instances_by_age ON instances (created_at, instance_id);
CREATE INDEX instances_by_parent ON instances (parent_id, created_at, instance_id) WHERE parent_id IS NOT NULL;
CREATE INDEX instances_by_session ON instances (session_id, created_at, instance_id) WHERE session_id IS NOT NULL;
CREATE INDEX instances_by_status ON instances (status, created_at, instance_id)
WHERE status IN ('suspended', 'failed', 'cancelled');
-- Instances that have not ended, for counts.
CREATE INDEX instances_live ON instances (created_at, instance_id) WHERE output IS NULL AND error IS NULL;

-- Labels of instances, for listings. A phase is the status, or `open` for pending and running ones, so that the first turn changes
-- nothing here. Kept by triggers, which touch only instances with labels.
CREATE TABLE instance_labels (
    key         TEXT NOT NULL,
    value       TEXT NOT NULL,
    phase       TEXT NOT NULL,
    created_at  REAL NOT NULL,
    instance_id TEXT NOT NULL,
    PRIMARY KEY (key, value, phase, created_at, instance_id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER instance_labelled AFTER INSERT ON instances WHEN NEW.labels IS NOT NULL
BEGIN
    INSERT INTO instance_labels (key, value, phase, created_at, instance_id)
    SELECT key, value, iif(NEW.status IN ('pending', 'running'), 'open', NEW.status), NEW.created_at, NEW.instance_id
    FROM json_each(NEW.labels);
END;

CREATE TRIGGER instance_labels_changed AFTER UPDATE OF status, labels ON instances WHEN
    (OLD.labels IS NOT NULL OR NEW.labels IS NOT NULL) AND (
        NEW.labels IS NOT OLD.labels
        OR iif(NEW.status IN ('pending', 'running'), 'open', NEW.status) <> iif(OLD.status IN ('pending', 'running'), 'open', OLD.status))
BEGIN
    DELETE FROM instance_labels
    WHERE (key, value) IN (SELECT key, value FROM json_each(coalesce(OLD.labels, '{}')))
      AND phase = iif(OLD.status IN ('pending', 'running'), 'open', OLD.status)
      AND created_at = OLD.created_at AND instance_id = OLD.instance_id;
    INSERT INTO instance_labels (key, value, phase, created_at, instance_id)
    SELECT key, value, iif(NEW.status IN ('pending', 'running'), 'open', NEW.status), NEW.created_at, NEW.instance_id
    FROM json_each(coalesce(NEW.labels, '{}'));
END;

CREATE TRIGGER instance_unlabelled AFTER DELETE ON instances WHEN OLD.labels IS NOT NULL
BEGIN
    DELETE FROM instance_labels
    WHERE (key, value) IN (SELECT key, value FROM json_each(OLD.labels))
      AND phase = iif(OLD.status IN ('pending', 'running'), 'open', OLD.status)
      AND created_at = OLD.created_at AND instance_id = OLD.instance_id;
END;

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

-- Suspended instances: why, since when, and which code has tried. name: of the orchestration. execution_id and event_count: where
-- it was suspended; beyond that point, no code has tried. tried: a JSON array of code versions; the last is `code`. The row stays
-- when the instance is resumed: it tells the code that has tried from the code that has not.
CREATE TABLE suspensions (
    instance_id  TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
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

CREATE INDEX suspensions_by_group ON suspensions (name, error_type, suspended_at, instance_id) WHERE resumed_at IS NULL;
CREATE INDEX suspensions_by_name ON suspensions (name, suspended_at, instance_id) WHERE resumed_at IS NULL;
CREATE INDEX suspensions_lasting ON suspensions (suspended_at, instance_id) WHERE resumed_at IS NULL;
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

-- Values that orchestrations set (`ctx.values`), as JSON. They stay until their instance is deleted or restarted.
CREATE TABLE instance_values (
    instance_id TEXT NOT NULL,
    key         TEXT NOT NULL,
    value       TEXT NOT NULL,
    updated_at  REAL NOT NULL,
    PRIMARY KEY (instance_id, key)
) STRICT, WITHOUT ROWID;

-- Failures: attempts of activities, activities that have failed, and orchestrations. activity_id: 0: of the orchestration; its
-- attempt is 0 too. name: of the activity or the orchestration. error: "ValueError: ...". stack: of an attempt that is retried; rows
-- with one stay as long as the history of their execution, the others are removed by their age.
CREATE TABLE failures (
    id           INTEGER PRIMARY KEY,
    instance_id  TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    activity_id  INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    kind         TEXT NOT NULL CHECK (kind IN ('activity', 'orchestration')),
    name         TEXT NOT NULL,
    error_type   TEXT NOT NULL,
    is_retried   INTEGER NOT NULL,
    failed_at    REAL NOT NULL,
    error        TEXT NOT NULL,
    stack        TEXT,
    UNIQUE (instance_id, execution_id, activity_id, attempt)
) STRICT;

CREATE INDEX failures_by_time ON failures (failed_at, instance_id, execution_id, activity_id, attempt);
CREATE INDEX failures_by_group ON failures (kind, name, error_type, failed_at, instance_id);
CREATE INDEX failures_by_name ON failures (kind, name, failed_at, instance_id, execution_id, activity_id, attempt);
CREATE INDEX failures_without_stack ON failures (failed_at) WHERE stack IS NULL;

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
