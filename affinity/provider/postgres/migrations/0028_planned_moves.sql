-- Planned moves of sessions, and workers that operators drain.

-- The time is in the index so that a fetch reads the moves with a bound, and no offers.
CREATE INDEX sessions_next ON sessions (next_worker, next_until) WHERE next_worker IS NOT NULL;

-- Planned moves that count: until their time, and while their workers take sessions. Beside `held_sessions`, not in it:
-- the time may be read in the conditions of a view, and not in its columns, or PostgreSQL merges it no more.
CREATE VIEW planned_moves AS
SELECT s.session_id, s.next_worker, 'new:' || s.next_worker AS route
FROM sessions s JOIN workers n ON n.worker_id = s.next_worker
WHERE (s.next_until <= clock()) IS NOT TRUE AND n.locked_until > clock() AND NOT n.draining;

-- An operator drains the worker: until it is resumed, each process of its name is draining from its registration on, one
-- of the release before too.
ALTER TABLE workers ADD COLUMN drain_wanted boolean NOT NULL DEFAULT false;
CREATE FUNCTION keep_draining() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.draining := true;
    RETURN NEW;
END $$;
CREATE TRIGGER worker_registered BEFORE UPDATE OF draining ON workers
FOR EACH ROW WHEN (NEW.drain_wanted AND NOT NEW.draining)
EXECUTE FUNCTION keep_draining();
