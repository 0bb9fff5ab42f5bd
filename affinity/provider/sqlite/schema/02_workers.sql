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
    named        INTEGER NOT NULL DEFAULT 1, -- it may return under its name
    app          TEXT NOT NULL,
    code_version TEXT NOT NULL,
    code_since   REAL NOT NULL, -- since when this version is deployed
    tags         TEXT NOT NULL DEFAULT '[]',
    only_tagged  INTEGER NOT NULL DEFAULT 0,
    registered   TEXT NOT NULL, -- a digest of each function that it has code for
    interfaces   TEXT NOT NULL DEFAULT '{}' -- and the schemas of what they take; large, so it is the last column
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
    gap_seconds     REAL, -- for which no worker held it; NULL: unknown, or there was no holder before
    hydrate_seconds REAL,
    hydrate_bytes   INTEGER,
    resource_seconds TEXT NOT NULL DEFAULT '{}' -- of the first load of each resource, by name
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
    INSERT INTO session_moves (epoch, session_id, from_worker, to_worker, reason, moved_at, queued, gap_seconds)
    SELECT NEW.epoch, NEW.session_id, nullif(OLD.worker_id, ''), NEW.worker_id, reason, NEW.claimed_at,
        (SELECT count(*) FROM (SELECT 1 FROM worker_queue WHERE session_id = NEW.session_id LIMIT 1000)),
        CASE WHEN reason NOT IN ('new', 'foreign_write') AND (ends IS NOT NULL OR OLD.locked_until <= NEW.claimed_at)
        THEN max(0.0, NEW.claimed_at - min(OLD.locked_until, coalesce(ends, OLD.locked_until))) END
    FROM (
        SELECT ends, CASE
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
