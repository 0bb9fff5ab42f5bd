-- Planned moves of sessions, and workers that operators drain.

CREATE INDEX sessions_by_next ON sessions (next_worker, next_until) WHERE next_worker IS NOT NULL;

-- An operator drains the worker: until it is resumed, each process of its name is draining from its registration on, one
-- of the release before too.
ALTER TABLE workers ADD COLUMN drain_wanted INTEGER NOT NULL DEFAULT 0;
CREATE TRIGGER worker_registered AFTER UPDATE OF draining ON workers
WHEN NEW.drain_wanted AND NOT NEW.draining
BEGIN
    UPDATE workers SET draining = 1 WHERE worker_id = NEW.worker_id;
END;
