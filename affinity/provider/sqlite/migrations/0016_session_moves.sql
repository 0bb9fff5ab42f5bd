-- Why a session has moved, and where it will go.

-- Why its lock was ended before its time: a reason of session_moves. NULL once it is claimed again.
ALTER TABLE sessions ADD COLUMN freed_by TEXT;
-- A planned move: the worker that may take the session from its holder while no work of it runs, until when (NULL:
-- without end), and the reason that the move will have.
ALTER TABLE sessions ADD COLUMN next_worker TEXT;
ALTER TABLE sessions ADD COLUMN next_until REAL;
ALTER TABLE sessions ADD COLUMN next_reason TEXT;

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

-- Triggers, so that no statement that gives a session to another holder can leave the record out, those of the release
-- before included.
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
    SELECT NEW.epoch, NEW.session_id, nullif(OLD.worker_id, ''), NEW.worker_id, reason, now,
        (SELECT count(*) FROM (SELECT 1 FROM worker_queue WHERE session_id = NEW.session_id LIMIT 1000))
    FROM (
        SELECT now, CASE
            -- A timeline that begins gives new epochs too; it has ended the leases before.
            WHEN NEW.worker_id = OLD.worker_id AND NEW.incarnation = OLD.incarnation
            THEN CASE WHEN ends > now THEN 'foreign_write' END
            WHEN OLD.worker_id = '' THEN 'new'
            WHEN NEW.worker_id = OLD.next_worker AND OLD.locked_until > now AND ends > now THEN OLD.next_reason
            WHEN OLD.freed_by IS NOT NULL THEN OLD.freed_by
            WHEN NEW.worker_id = OLD.worker_id THEN 'restart'
            WHEN OLD.locked_until > now THEN 'lease_expired'
            WHEN draining THEN 'drained' -- freed by a worker of the release before
            -- Which of the two has ended first.
            WHEN ends < OLD.locked_until THEN 'lease_expired'
            ELSE 'idle_expired'
        END AS reason
        FROM (
            -- The release before does not change claimed_at when it writes without the lease.
            SELECT CASE WHEN NEW.claimed_at > OLD.claimed_at THEN NEW.claimed_at
                        ELSE (julianday('now') - 2440587.5) * 86400 END AS now
        ) LEFT JOIN (
            SELECT locked_until AS ends, draining FROM workers
            WHERE worker_id = OLD.worker_id AND incarnation = OLD.incarnation
        ) ON true
    )
    WHERE reason IS NOT NULL
    ON CONFLICT DO NOTHING;
    UPDATE sessions SET freed_by = NULL
    WHERE session_id = NEW.session_id AND (NEW.worker_id <> OLD.worker_id OR NEW.incarnation <> OLD.incarnation)
      AND freed_by IS NOT NULL;
    -- A new start of the holder changes nothing of the plan.
    UPDATE sessions SET next_worker = NULL, next_until = NULL, next_reason = NULL
    WHERE session_id = NEW.session_id AND NEW.worker_id <> OLD.worker_id AND next_worker IS NOT NULL;
END;

CREATE TRIGGER session_reclaimed AFTER UPDATE OF epoch ON sessions
WHEN NEW.epoch = OLD.epoch AND OLD.freed_by IS NOT NULL AND NEW.locked_until > OLD.locked_until
BEGIN
    UPDATE sessions SET freed_by = NULL WHERE session_id = NEW.session_id;
END;
