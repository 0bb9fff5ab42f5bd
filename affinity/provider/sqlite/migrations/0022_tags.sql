-- Tags: which workers may take an item. An item that any worker may take has the route 'free' or 'new'; with a tag it has
-- 'free#TAG' or 'new#TAG', which only workers with the tag read. So each fetch reads one range of the index per tag.
ALTER TABLE workers ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
ALTER TABLE workers ADD COLUMN only_tagged INTEGER NOT NULL DEFAULT 0;

-- Of the first work that a worker claimed it for; NULL: without a tag.
ALTER TABLE sessions ADD COLUMN tag TEXT;

ALTER TABLE worker_queue ADD COLUMN tag TEXT;

-- Seconds that an item waits for a slot of the holder of its session before another worker may take the session over, and
-- before it fails; since when it waits, and when that is to be looked at. NULL: as long as it takes.
ALTER TABLE worker_queue ADD COLUMN takeover_after REAL;
ALTER TABLE worker_queue ADD COLUMN fail_after REAL;
ALTER TABLE worker_queue ADD COLUMN waits_since REAL;
ALTER TABLE worker_queue ADD COLUMN attend_at REAL;
CREATE INDEX worker_queue_attend ON worker_queue (attend_at) WHERE attend_at IS NOT NULL;

-- Add the tag to a route that any worker would read, and to an offer to a worker without the tag. A session's own tag
-- decides, once work has given it one: also for an item without a tag, and for one with another tag, which the holder
-- refuses. Triggers, so that it holds for every statement, those of the release before included.
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
