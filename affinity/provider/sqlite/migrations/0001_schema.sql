-- Counters, the timeline and the settings of this database.
--
-- Times are Unix seconds. The lease columns of work items and sessions are in no index: renewing a lock rewrites one row and
-- nothing else. Long columns stand last, so that no other column is read past them.

-- Migrations that were applied: see affinity/provider/schema.py.
CREATE TABLE migrations (
    version     INTEGER PRIMARY KEY,
    oldest_code INTEGER NOT NULL,
    release     TEXT NOT NULL, -- of affinity, that applied it
    applied_at  TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT;

-- epoch: one counter for all sessions, so that a session whose row was removed never gets an old epoch again. swept_at,
-- swept_clean, pruned_to: where the last sweep stopped; the next one goes on from there. rebalancing_suspended: no worker may
-- offer sessions to others.
CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value REAL NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO counters (name, value)
VALUES ('epoch', 0), ('swept_at', 0), ('swept_clean', 0), ('pruned_to', 0), ('rebalancing_suspended', 0);

-- Which database this is, and which line of its history: see affinity/provider/timeline.py. One row. Each registration
-- and renewal of a worker adds one to `reached`: a backup that is restored is behind what a worker saw.
CREATE TABLE timeline (
    token   TEXT NOT NULL,
    reached INTEGER NOT NULL
) STRICT;

INSERT INTO timeline VALUES (lower(hex(randomblob(16))), 0);

-- Limits of this database, none or one row. NULL: no limit. instances: rows of that table, counted in `counters` by triggers
-- that exist while there is a quota of them. unread_events: of one instance. instance_bytes: of one instance, events of its
-- present execution and messages that wait for it.
CREATE TABLE quotas (
    instances      INTEGER,
    unread_events  INTEGER,
    instance_bytes INTEGER
) STRICT;

-- Workers, and the sessions that they hold.

CREATE TABLE workers (
    worker_id    TEXT PRIMARY KEY,
    incarnation  TEXT NOT NULL,
    locked_until REAL NOT NULL,
    draining     INTEGER NOT NULL DEFAULT 0,
    started_at   REAL NOT NULL,
    labels       TEXT NOT NULL,
    capacity     INTEGER NOT NULL, -- sessions that it may hold
    sessions     INTEGER, -- and holds, as it said last
    drain_wanted INTEGER NOT NULL DEFAULT 0, -- by an operator: until it is resumed, each process of its name is draining
    app          TEXT NOT NULL,
    code_version TEXT NOT NULL,
    code_since   REAL NOT NULL, -- since when this version is deployed
    tags         TEXT NOT NULL DEFAULT '[]',
    only_tagged  INTEGER NOT NULL DEFAULT 0,
    registered   TEXT NOT NULL -- a digest of each function that it has code for
) STRICT, WITHOUT ROWID;

-- freed_by: why its lock was ended before its time, a reason of session_moves; NULL once it is claimed again. next_*: a planned
-- move, the worker that may take the session from its holder while no work of it runs, until when (NULL: without end), and the
-- reason that the move will have. tag: of the first work that a worker claimed it for.
CREATE TABLE sessions (
    session_id   TEXT PRIMARY KEY,
    worker_id    TEXT NOT NULL, -- '': no worker has held it; its record was written without a lease
    incarnation  TEXT NOT NULL,
    epoch        INTEGER NOT NULL,
    locked_until REAL NOT NULL,
    touched_at   REAL NOT NULL,
    claimed_at   REAL NOT NULL,
    freed_by     TEXT,
    next_worker  TEXT,
    next_until   REAL,
    next_reason  TEXT,
    tag          TEXT
) STRICT, WITHOUT ROWID;

-- Counting what a worker holds must not read the sessions that it once held. TOUCH_SLACK keeps writes of it rare.
CREATE INDEX sessions_by_worker ON sessions (worker_id, locked_until);
CREATE INDEX sessions_by_next ON sessions (next_worker, next_until) WHERE next_worker IS NOT NULL;

-- One row for each change of a session's holder, and for each write without the lease, which ends what its holder has in
-- memory. The new holder adds what the hydrate has cost. An epoch is issued once, and later ones are greater: so it is the
-- key, and the order.
CREATE TABLE session_moves (
    epoch           INTEGER PRIMARY KEY,
    session_id      TEXT NOT NULL,
    from_worker     TEXT, -- NULL: none before
    to_worker       TEXT NOT NULL,
    reason          TEXT NOT NULL,
    moved_at        REAL NOT NULL,
    queued          INTEGER NOT NULL, -- work items of the session, up to a bound
    hydrate_seconds REAL,
    hydrate_bytes   INTEGER
) STRICT;

CREATE INDEX session_moves_by_session ON session_moves (session_id);
CREATE INDEX session_moves_by_to ON session_moves (to_worker);
CREATE INDEX session_moves_by_from ON session_moves (from_worker) WHERE from_worker IS NOT NULL;
CREATE INDEX session_moves_by_reason ON session_moves (reason);

-- Triggers, so that no statement that gives a session to another holder can leave the record out.
CREATE TRIGGER session_begun AFTER INSERT ON sessions WHEN NEW.worker_id <> ''
BEGIN
    INSERT INTO session_moves (epoch, session_id, to_worker, reason, moved_at, queued)
    SELECT NEW.epoch, NEW.session_id, NEW.worker_id, 'new', NEW.claimed_at,
        (SELECT count(*) FROM (SELECT 1 FROM worker_queue WHERE session_id = NEW.session_id LIMIT 1000))
    WHERE true
    ON CONFLICT DO NOTHING; -- after a restore that set the counter back: no claim fails for that
END;

CREATE TRIGGER session_claimed AFTER UPDATE OF epoch ON sessions WHEN NEW.epoch <> OLD.epoch
BEGIN
    INSERT INTO session_moves (epoch, session_id, from_worker, to_worker, reason, moved_at, queued)
    SELECT NEW.epoch, NEW.session_id, nullif(OLD.worker_id, ''), NEW.worker_id, reason, NEW.claimed_at,
        (SELECT count(*) FROM (SELECT 1 FROM worker_queue WHERE session_id = NEW.session_id LIMIT 1000))
    FROM (
        SELECT CASE
            -- A timeline that begins gives new epochs too; it has ended the leases before.
            WHEN NEW.worker_id = OLD.worker_id AND NEW.incarnation = OLD.incarnation
            THEN CASE WHEN ends > NEW.claimed_at THEN 'foreign_write' END
            WHEN OLD.worker_id = '' THEN 'new'
            WHEN NEW.worker_id = OLD.next_worker AND OLD.locked_until > NEW.claimed_at AND ends > NEW.claimed_at
            THEN OLD.next_reason
            WHEN OLD.freed_by IS NOT NULL THEN OLD.freed_by
            WHEN NEW.worker_id = OLD.worker_id THEN 'restart'
            WHEN OLD.locked_until > NEW.claimed_at THEN 'lease_expired'
            -- Which of the two has ended first.
            WHEN ends < OLD.locked_until THEN 'lease_expired'
            ELSE 'idle_expired'
        END AS reason
        FROM (SELECT 1) LEFT JOIN (
            SELECT locked_until AS ends FROM workers WHERE worker_id = OLD.worker_id AND incarnation = OLD.incarnation
        ) ON true
    )
    WHERE reason IS NOT NULL
    ON CONFLICT DO NOTHING;
END;

-- What keeps a session where it is. session_lock: seconds, for code that ends the hold without knowing the worker's timeouts.
CREATE TABLE session_holds (
    instance_id  TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    hold_id      INTEGER NOT NULL,
    session_id   TEXT NOT NULL,
    until        REAL NOT NULL,
    session_lock REAL NOT NULL,
    PRIMARY KEY (instance_id, execution_id, hold_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_holds_by_session ON session_holds (session_id, until);
CREATE INDEX session_holds_by_end ON session_holds (until);

-- Instances that get a message when the session moves.
CREATE TABLE session_watches (
    session_id  TEXT NOT NULL,
    instance_id TEXT NOT NULL,
    payload     TEXT NOT NULL,
    PRIMARY KEY (session_id, instance_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_watches_by_instance ON session_watches (instance_id);

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

-- Messages for instances, and work items for workers. The integer key is the order of arrival, and it ends every index, so
-- that "by visibility, then by arrival" needs no sort.

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

CREATE INDEX orchestrator_queue_by_instance ON orchestrator_queue (instance_id, visible_at);
CREATE INDEX orchestrator_queue_by_route ON orchestrator_queue (route, visible_at);
CREATE INDEX orchestrator_queue_timers ON orchestrator_queue (instance_id, timer_execution, timer_id)
    WHERE timer_id IS NOT NULL;

-- route: 'w:W' of the holder W of its session, 'new:W' of a worker W to which the session moves, 'new' of a session without a
-- holder, 'free' without a session; 'new#TAG' and 'free#TAG' with a tag, which only workers with the tag read; 'blocked' behind
-- another item in its session's order. needs: what a worker must have among its names, beside the item's own, to be given an
-- item that was given back as unknown. order_session, order_number: the session in whose order an item stands, and its place
-- there; items behind the first have no session_id, so that no statement which looks for the items of a session finds them.
-- takeover_after, fail_after: seconds that it waits for a slot of the holder of its session before another worker may take the
-- session over, and before it fails; waits_since, attend_at: since when it waits, and when that has to be checked.
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
    needs            TEXT,
    order_session    TEXT,
    order_number     INTEGER,
    tag              TEXT,
    takeover_after   REAL,
    fail_after       REAL,
    waits_since      REAL,
    attend_at        REAL,
    last_error       TEXT, -- of the failure before, for people
    payload          TEXT NOT NULL,
    UNIQUE (instance_id, execution_id, activity_id)
) STRICT;

CREATE INDEX worker_queue_attend ON worker_queue (attend_at) WHERE attend_at IS NOT NULL;
CREATE INDEX worker_queue_by_order ON worker_queue (order_session, order_number) WHERE order_session IS NOT NULL;
CREATE INDEX worker_queue_by_route ON worker_queue (route, visible_at);
CREATE INDEX worker_queue_by_session ON worker_queue (session_id, route) WHERE session_id IS NOT NULL;

-- The first item of an order is removed: the next one takes its place. Its route is the route of a planned move of the session,
-- else the route of the first item, to the holder; a stale route is repaired, as all are.
CREATE TRIGGER promote_next AFTER DELETE ON worker_queue
WHEN OLD.order_session IS NOT NULL AND OLD.route <> 'blocked'
BEGIN
    UPDATE worker_queue SET session_id = order_session, route = coalesce(
        (SELECT 'new:' || s.next_worker FROM sessions AS s WHERE s.session_id = OLD.order_session),
        iif(OLD.route > 'w:', OLD.route, 'new')
    )
    WHERE route = 'blocked' AND id = (
        SELECT q.id FROM worker_queue AS q WHERE q.order_session = OLD.order_session ORDER BY q.order_number LIMIT 1
    );
END;

-- Add the tag to a route that any worker would read, and to an offer to a worker without the tag. A session's own tag
-- decides, once work has given it one: also for an item without a tag, and for one with another tag, which the holder
-- refuses. Triggers, so that it holds for every statement.
CREATE TRIGGER worker_queue_tag_new AFTER INSERT ON worker_queue
WHEN NEW.route = 'free' AND NEW.tag IS NOT NULL
  OR NEW.route >= 'new' AND NEW.route < 'new;' AND (
      NEW.tag IS NOT NULL AND NEW.route = 'new'
      OR EXISTS (
          SELECT 1 FROM sessions AS s WHERE s.session_id = NEW.session_id AND s.tag IS NOT NULL
            -- An offer, or a planned move, to a worker with the tag stands.
            AND NOT EXISTS (
                SELECT 1 FROM workers AS w, json_each(w.tags) AS has
                WHERE w.worker_id = substr(NEW.route, 5) AND has.value = s.tag)))
BEGIN
    UPDATE worker_queue SET route = coalesce(
        iif(NEW.session_id IS NULL, 'free#' || NEW.tag, NULL),
        (SELECT iif(s.tag IS NULL, 'new', 'new#' || s.tag) FROM sessions AS s
         WHERE s.session_id = NEW.session_id AND s.worker_id <> ''),
        'new#' || NEW.tag, route)
    WHERE id = NEW.id;
END;

CREATE TRIGGER worker_queue_tag AFTER UPDATE OF route ON worker_queue
WHEN NEW.route = 'free' AND NEW.tag IS NOT NULL
  OR NEW.route = 'new' AND (
      NEW.tag IS NOT NULL
      OR EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = NEW.session_id AND s.tag IS NOT NULL))
BEGIN
    UPDATE worker_queue SET route = coalesce(
        iif(NEW.session_id IS NULL, 'free#' || NEW.tag, NULL),
        (SELECT iif(s.tag IS NULL, 'new', 'new#' || s.tag) FROM sessions AS s
         WHERE s.session_id = NEW.session_id AND s.worker_id <> ''),
        'new#' || NEW.tag, route)
    WHERE id = NEW.id;
END;

-- Work items that are parked until an input of their journal queues them: see `NewWorkItem.parked`. They are in no queue, and no
-- verb of a queue finds them. Of each instance the last one; removed with the execution in which it was scheduled. While one is
-- here, its journal has no pending input, except inputs without a message, which queue nothing.
CREATE TABLE parked_items (
    instance_id  TEXT PRIMARY KEY,
    execution_id INTEGER NOT NULL,
    activity_id  INTEGER NOT NULL,
    name         TEXT NOT NULL,
    session_id   TEXT,
    payload      TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Records the end of an execution, and removes its parked item, whichever statement ends it.
CREATE TRIGGER execution_ended AFTER UPDATE OF status, execution_id ON instances
WHEN NEW.execution_id <> OLD.execution_id
  OR NEW.status IN ('completed', 'failed', 'cancelled') AND OLD.status NOT IN ('completed', 'failed', 'cancelled')
BEGIN
    INSERT INTO ended_executions (instance_id, execution_id, is_last, ended_at)
    VALUES (NEW.instance_id, OLD.execution_id, NEW.execution_id = OLD.execution_id, NEW.updated_at)
    ON CONFLICT (instance_id, execution_id) DO UPDATE SET is_last = excluded.is_last, ended_at = excluded.ended_at;
    DELETE FROM parked_items WHERE instance_id = NEW.instance_id;
END;

-- Records of session state.

-- The state stands last, and before it the other long columns: a statement that asks for a version reads one page, not a chain
-- of them. generation: versions begin again with a record that is recreated. turn: idempotency key of the last write. Every
-- index but the one by creation ends with the order of a listing, so that a page of it needs no sort.
CREATE TABLE session_states (
    session_id     TEXT PRIMARY KEY,
    version        INTEGER NOT NULL,
    generation     TEXT NOT NULL DEFAULT (lower(hex(randomblob(8)))),
    epoch          INTEGER, -- of the lease that wrote it last; NULL: none ever did
    created_at     REAL NOT NULL,
    updated_at     REAL NOT NULL,
    schema_version INTEGER NOT NULL,
    encoding       TEXT NOT NULL,
    kind           TEXT NOT NULL,
    name           TEXT,
    parent         TEXT,
    message_count  INTEGER,
    turn           TEXT,
    labels         TEXT NOT NULL,
    participants   TEXT NOT NULL,
    state          BLOB NOT NULL
) STRICT;

CREATE INDEX session_states_by_age ON session_states (updated_at, session_id);
CREATE INDEX session_states_by_creation ON session_states (created_at, session_id);
CREATE INDEX session_states_by_kind ON session_states (kind, updated_at, session_id);
CREATE INDEX session_states_by_name ON session_states (name, updated_at, session_id) WHERE name IS NOT NULL;
CREATE INDEX session_states_by_parent ON session_states (parent, updated_at, session_id) WHERE parent IS NOT NULL;
CREATE INDEX session_states_by_schema ON session_states (schema_version, updated_at, session_id);

-- The labels and the participants once more, to be found by; without the time of the last write, so that a write that leaves
-- them as they are changes nothing here.
CREATE TABLE session_labels (
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    session_id TEXT NOT NULL,
    PRIMARY KEY (key, value, session_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_labels_by_session ON session_labels (session_id);

CREATE TABLE session_participants (
    participant TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    PRIMARY KEY (participant, session_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_participants_by_session ON session_participants (session_id);

-- Journals of sessions: see affinity/journal.py.

-- session_id: NULL when it was deleted, and forks continue it. base_id, base_seq: the journal that it continues, after that
-- number. first_seq: the first entry that is kept; greater than last_seq if there is none. size: bytes of the payloads of its
-- own entries. ended_wake, ended_attempt: the last attempt that has committed or was retracted; late parts of its stream are
-- ignored. dropped: the last entry that has dropped requests and revisits. home: the session on whose lease the wakes run;
-- NULL: its own. lineage, operator, extras: how it was made from others (`JournalCreation`). used: what entries have used that
-- were removed, by writer, the number of these entries with a usage, and its sum by name: {"WRITER": [3, {"tokens": 30}]}. A
-- writer is the beginning that the ids of the wakes of one instance share.
CREATE TABLE journals (
    journal_id    INTEGER PRIMARY KEY,
    session_id    TEXT UNIQUE,
    kind          TEXT NOT NULL,
    parent        TEXT,
    parent_journal INTEGER, -- of the parent as it was when it created this one
    home          TEXT,
    lineage       TEXT,
    operator      TEXT NOT NULL DEFAULT '',
    extras        TEXT NOT NULL DEFAULT '{}',
    base_id       INTEGER,
    base_seq      INTEGER,
    first_seq     INTEGER NOT NULL DEFAULT 1,
    last_seq      INTEGER NOT NULL DEFAULT 0,
    processed     INTEGER NOT NULL DEFAULT 0,
    dropped       INTEGER NOT NULL DEFAULT 0,
    closed        INTEGER NOT NULL DEFAULT 0,
    size          INTEGER NOT NULL DEFAULT 0,
    ended_wake    TEXT,
    ended_attempt INTEGER,
    used          TEXT NOT NULL DEFAULT '{}',
    created_at    REAL NOT NULL,
    updated_at    REAL NOT NULL
) STRICT;

CREATE INDEX journals_by_age ON journals (created_at, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX journals_by_base ON journals (base_id, base_seq) WHERE base_id IS NOT NULL;
CREATE INDEX journals_by_kind ON journals (kind, created_at, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX journals_by_parent ON journals (parent, created_at, session_id) WHERE parent IS NOT NULL;
CREATE INDEX journals_deleted ON journals (journal_id) WHERE session_id IS NULL;
-- Retention finds journals that are over a bound of entries or bytes by these. Short ones are in neither.
CREATE INDEX journals_by_entries ON journals (last_seq - first_seq) WHERE last_seq - first_seq >= 64;
CREATE INDEX journals_by_size ON journals (size) WHERE size > 65536;

-- origin_id, origin_seq: the entry that a merge has copied.
CREATE TABLE journal_entries (
    journal_id  INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    event_id    TEXT,
    wake_id     TEXT,
    is_input    INTEGER NOT NULL,
    recorded_at REAL NOT NULL,
    origin_id   INTEGER,
    origin_seq  INTEGER,
    payload     TEXT NOT NULL,
    PRIMARY KEY (journal_id, seq)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX journal_entries_by_event ON journal_entries (journal_id, event_id) WHERE event_id IS NOT NULL;
CREATE INDEX journal_entries_by_kind ON journal_entries (journal_id, kind, seq);
CREATE INDEX journal_entries_by_origin ON journal_entries (origin_id, origin_seq) WHERE origin_id IS NOT NULL;
CREATE INDEX journal_entries_by_wake ON journal_entries (journal_id, wake_id, seq) WHERE wake_id IS NOT NULL;
CREATE INDEX journal_entries_inputs ON journal_entries (journal_id, seq) WHERE is_input;

-- seq: the first entry that was appended with it.
CREATE TABLE journal_requests (
    id         INTEGER PRIMARY KEY,
    journal_id INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    kind       TEXT NOT NULL,
    wake_id    TEXT,
    seq        INTEGER NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    payload    TEXT NOT NULL,
    UNIQUE (journal_id, request_id)
) STRICT;

CREATE TABLE journal_revisits (
    journal_id INTEGER NOT NULL,
    key        TEXT NOT NULL,
    due_at     REAL NOT NULL,
    priority   INTEGER NOT NULL,
    reason     TEXT NOT NULL,
    note       TEXT NOT NULL,
    wake_id    TEXT,
    PRIMARY KEY (journal_id, key)
) STRICT, WITHOUT ROWID;

-- Of each journal, the parts of one attempt of one wake.
CREATE TABLE journal_streams (
    journal_id INTEGER NOT NULL,
    wake_id    TEXT NOT NULL,
    attempt    INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    payload    TEXT NOT NULL,
    PRIMARY KEY (journal_id, wake_id, attempt, number)
) STRICT, WITHOUT ROWID;

-- A journal that others name here is kept, without its entries, when it is deleted: the way to its own parents.
CREATE TABLE journal_parents (
    journal_id INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    parent_id  INTEGER NOT NULL,
    PRIMARY KEY (journal_id, position)
) STRICT, WITHOUT ROWID;

CREATE INDEX journal_parents_by_parent ON journal_parents (parent_id);
