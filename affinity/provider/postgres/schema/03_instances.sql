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
    updated_at timestamptz NOT NULL,
    gate text COLLATE "C",              -- at which its start message waits; NULL: it waits no longer
    limited boolean,                    -- TRUE: the gate has limits, at which it keeps its place until it ends
    starts_at timestamptz,              -- when its delayed start message is visible, and messages to it are; NULL: it had no delay
    waits_since timestamptz,            -- when it was first started, if its start may still be replaced
    next_start text,                    -- a start that waits for its end: arguments of `restart_instances`, as JSON
    value_bytes bigint NOT NULL DEFAULT 0, -- of `instance_values`
    labels jsonb                        -- texts by key; NULL: it has none
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX instances_next ON instances (instance_id) WHERE next_start IS NOT NULL;
CREATE INDEX instances_created ON instances (created_at, instance_id);
CREATE INDEX instances_parent ON instances (parent_id, created_at) WHERE parent_id IS NOT NULL;
CREATE INDEX instances_session ON instances (session_id, created_at, instance_id) WHERE session_id IS NOT NULL;
-- Instances that have not ended, for counts. Only the last turn of an instance changes these columns: with the status in the
-- condition, the first turn would be no heap-only update either.
CREATE INDEX instances_live ON instances (created_at, instance_id) WHERE output IS NULL AND error IS NULL;

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
    queued_for real, -- seconds that it had waited in the queue
    PRIMARY KEY (instance_id, execution_id, event_id)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);

-- Suspended instances: why, since when, and which code has tried. The row stays when the instance is resumed: it tells the
-- code that has tried from the code that has not.
CREATE TABLE suspensions (
    instance_id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL, -- of the orchestration
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
CREATE INDEX suspensions_lasting ON suspensions (suspended_at, instance_id) WHERE resumed_at IS NULL;
CREATE INDEX suspensions_group ON suspensions (name, error_type, suspended_at, instance_id) WHERE resumed_at IS NULL;
CREATE INDEX suspensions_name ON suspensions (name, suspended_at, instance_id) WHERE resumed_at IS NULL;

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
CREATE INDEX ended_instances ON ended_executions (ended_at, instance_id) WHERE is_last;
CREATE INDEX ended_histories ON ended_executions (ended_at) WHERE NOT is_last;

-- Instances of the statuses that few of them have, for listings. A table, since an index of `instances` with the status
-- would keep the first and the last turn of each instance from being heap-only updates.
CREATE TABLE instances_by_status (
    status text COLLATE "C" NOT NULL, -- suspended, failed, cancelled
    created_at timestamptz NOT NULL,
    instance_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (status, created_at, instance_id)
);

-- Labels of instances, for listings. A phase is the status, or `open` for pending and running ones, so that the first turn changes
-- nothing here. Kept by triggers, which touch only instances with labels.
CREATE TABLE instance_labels (
    key text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    phase text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    instance_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (key, value, phase, created_at, instance_id)
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

-- Values that orchestrations set (`ctx.values`), as JSON. They stay until their instance is deleted or restarted.
CREATE TABLE instance_values (
    instance_id text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    value text NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (instance_id, key)
) WITH (fillfactor = 80);

-- Failures: attempts of activities, activities that have failed, and orchestrations. Rows with a stack stay as long as the history of
-- their execution, the others are removed by their age.
CREATE TABLE failures (
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    activity_id integer NOT NULL, -- 0: of the orchestration
    attempt integer NOT NULL,     -- 0: of the orchestration
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('activity', 'orchestration')),
    name text COLLATE "C" NOT NULL, -- of the activity or the orchestration
    error_type text COLLATE "C" NOT NULL,
    is_retried boolean NOT NULL,
    failed_at timestamptz NOT NULL,
    error text NOT NULL, -- "ValueError: ..."
    stack text, -- of an attempt that is retried
    PRIMARY KEY (instance_id, execution_id, activity_id, attempt)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX failures_time ON failures (failed_at, instance_id);
-- The whole order of a listing, so that none reads and sorts a class or a name as a whole, whatever the statistics say.
CREATE INDEX failures_group ON failures (kind, name, error_type, failed_at, instance_id, execution_id, activity_id, attempt);
CREATE INDEX failures_name ON failures (kind, name, failed_at, instance_id, execution_id, activity_id, attempt);
CREATE INDEX failures_without_stack ON failures (failed_at) WHERE stack IS NULL;

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

-- The route of a message for an instance: to its owner, to any worker, or nowhere for now: the instance is suspended, or waits at
-- its gate. Ended instances take none. starts_at: before that time, no message to it is visible.
CREATE VIEW message_routes AS
SELECT i.instance_id, i.generation, CASE WHEN i.status = 'pending' THEN i.starts_at END AS starts_at,
    CASE WHEN i.status = 'suspended' THEN 'suspended' WHEN i.gate IS NOT NULL THEN 'gated'
         ELSE coalesce('w:' || w.worker_id, 'new') END AS route
FROM instances i
LEFT JOIN alive_workers w ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation
WHERE i.status IN ('pending', 'running', 'suspended');

-- A message to an instance that waits at its gate waits with it, unless the gate is opened meanwhile: by a transaction that we wait
-- for here, or by one that waits for us, and then sees the message.
CREATE FUNCTION check_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM instances i WHERE i.instance_id = NEW.instance_id AND i.gate IS NOT NULL FOR SHARE;
    IF NOT FOUND THEN
        NEW.route := coalesce((SELECT r.route FROM message_routes r WHERE r.instance_id = NEW.instance_id), 'new');
    END IF;
    RETURN NEW;
END $$;
