-- Tags: which workers may take an item. An item that any worker may take has the route 'free' or 'new'; with a tag it has
-- 'free#TAG' or 'new#TAG', which only workers with the tag read. So each fetch reads one range of the index per tag.
ALTER TABLE workers
    ADD COLUMN tags text[] NOT NULL DEFAULT '{}',
    ADD COLUMN only_tagged boolean NOT NULL DEFAULT false;

-- Of the first work that a worker claimed it for; NULL: without a tag.
ALTER TABLE sessions ADD COLUMN tag text COLLATE "C";

ALTER TABLE worker_queue ADD COLUMN tag text COLLATE "C";

-- With the new columns: a view keeps the columns that its table had.
CREATE OR REPLACE VIEW deliverable_items AS
SELECT q.* FROM worker_queue q
WHERE q.visible_at <= (SELECT clock())
  AND (q.lock_token IS NULL OR q.locked_until <= clock() OR NOT EXISTS (
      SELECT FROM workers w
      WHERE w.worker_id = q.lock_worker AND w.incarnation = q.lock_incarnation AND w.locked_until > clock()));

-- Adds the tag to a route that any worker would read, and to an offer to a worker without the tag. A session's own tag
-- decides, once work has given it one: also for an item without a tag, and for one with another tag, which the holder
-- refuses. A trigger, so that it holds for every statement, those of the release before included.
CREATE FUNCTION tag_route() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    _tag text := NEW.tag;
    _begun boolean;
BEGIN
    IF NEW.session_id IS NOT NULL THEN
        SELECT s.tag, true INTO _tag, _begun FROM sessions s WHERE s.session_id = NEW.session_id AND s.worker_id <> '';
        IF _begun IS NULL THEN
            _tag := NEW.tag;
        END IF;
    END IF;
    -- An offer, or a planned move, to a worker with the tag stands.
    IF _tag IS NOT NULL AND NOT (
        NEW.route > 'new:' AND EXISTS (
            SELECT FROM workers w WHERE w.worker_id = substr(NEW.route, 5) AND _tag = ANY (w.tags)))
    THEN
        NEW.route := CASE WHEN NEW.session_id IS NULL THEN 'free#' ELSE 'new#' END || _tag;
        IF TG_OP = 'UPDATE' AND NEW IS NOT DISTINCT FROM OLD THEN
            RETURN NULL;  -- no change: it is not counted as one
        END IF;
    END IF;
    RETURN NEW;
END $$;

-- An item is queued without a tag (`restrict_items_1` adds it), possibly of a session that has one.
CREATE TRIGGER worker_queue_tag_new BEFORE INSERT ON worker_queue FOR EACH ROW
WHEN (NEW.route >= 'new' AND NEW.route < 'new;') EXECUTE FUNCTION tag_route();

CREATE TRIGGER worker_queue_tag BEFORE UPDATE OF route, tag ON worker_queue FOR EACH ROW
WHEN (NEW.route = 'new' OR NEW.route = 'free' AND NEW.tag IS NOT NULL) EXECUTE FUNCTION tag_route();

-- Restricts items that the same transaction has queued. A function, so that a commit and a reset can do it in their own
-- statement, behind what they write: work without restrictions costs nothing more.
CREATE FUNCTION restrict_items_1(_instance text[], _execution bigint[], _activity bigint[], _tag text[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE worker_queue q SET tag = _tag[r.k]
    FROM unnest(_instance) WITH ORDINALITY AS r (instance_id, k)
    WHERE q.instance_id = r.instance_id AND q.execution_id = _execution[r.k] AND q.activity_id = _activity[r.k]
$$;
