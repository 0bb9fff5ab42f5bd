-- Planned moves of sessions, and workers that operators drain.

-- The time is in the index so that a fetch reads the moves with a bound, and no offers.
CREATE INDEX sessions_next ON sessions (next_worker, next_until) WHERE next_worker IS NOT NULL;

-- A planned move counts until its time, and while its worker takes sessions. `route`: of items of the session.
CREATE OR REPLACE VIEW held_sessions AS
SELECT h.session_id, h.worker_id, h.incarnation, h.epoch, h.locked_until, h.next_worker,
    coalesce('new:' || h.next_worker, 'w:' || h.worker_id) AS route
FROM (
    SELECT s.session_id, s.worker_id, s.incarnation, s.epoch, s.locked_until,
        CASE WHEN s.next_worker IS NULL OR s.next_until <= clock() THEN NULL
             ELSE (SELECT n.worker_id FROM workers n
                   WHERE n.worker_id = s.next_worker AND n.locked_until > clock() AND NOT n.draining)
        END AS next_worker
    FROM sessions s JOIN workers w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation
    WHERE s.locked_until > clock() AND w.locked_until > clock()) h;

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
