-- Tags: which workers may take an item. An item that any worker may take has the route 'free' or 'new'; with a tag it has
-- 'free#TAG' or 'new#TAG', which only workers with the tag read. So each fetch reads one range of the index per tag.
ALTER TABLE workers
    ADD COLUMN tags text[] NOT NULL DEFAULT '{}',
    ADD COLUMN only_tagged boolean NOT NULL DEFAULT false;

-- Of the first work that a worker claimed it for; NULL: without a tag.
ALTER TABLE sessions ADD COLUMN tag text COLLATE "C";

ALTER TABLE worker_queue
    ADD COLUMN tag text COLLATE "C",
    -- Seconds that it waits for a slot of the holder of its session before another worker may take the session over, and
    -- before it fails; since when it waits, and when that is to be looked at. NULL: as long as it takes.
    ADD COLUMN takeover_after float8,
    ADD COLUMN fail_after float8,
    ADD COLUMN waits_since timestamptz,
    ADD COLUMN attend_at timestamptz;
CREATE INDEX worker_queue_attend ON worker_queue (attend_at) WHERE attend_at IS NOT NULL;

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
CREATE FUNCTION restrict_items_1(_instance text[], _execution bigint[], _activity bigint[], _tag text[],
    _takeover float8[], _fail float8[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE worker_queue q
    SET tag = _tag[r.k], takeover_after = _takeover[r.k], fail_after = _fail[r.k],
        waits_since = coalesce(q.locked_until, q.visible_at),
        attend_at = coalesce(q.locked_until, q.visible_at) + least(_takeover[r.k], _fail[r.k]) * interval '1 s'
    FROM unnest(_instance) WITH ORDINALITY AS r (instance_id, k)
    WHERE q.instance_id = r.instance_id AND q.execution_id = _execution[r.k] AND q.activity_id = _activity[r.k]
$$;

-- Frees sessions whose holders are busy, for other workers that take their work and have room; those that were freed.
CREATE FUNCTION release_busy_1(_session text[], _reroute bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    freed text[];
BEGIN
    -- A claim, a fetch or a commit that has one of these rows is waited for, and is seen by what follows.
    PERFORM FROM sessions s WHERE s.session_id = ANY (_session) ORDER BY s.session_id FOR NO KEY UPDATE;
    freed := ARRAY(
        SELECT s.session_id FROM sessions s JOIN held_sessions h ON h.session_id = s.session_id
        WHERE s.session_id = ANY (_session) AND (s.next_worker IS NULL OR s.next_until <= clock())
          AND NOT EXISTS (
              SELECT FROM worker_queue q
              WHERE q.session_id = s.session_id AND q.lock_incarnation = s.incarnation AND q.locked_until > clock())
          AND EXISTS (
              SELECT FROM workers w
              WHERE w.worker_id <> s.worker_id AND w.locked_until > clock() AND NOT w.draining
                AND CASE WHEN s.tag IS NULL THEN NOT w.only_tagged ELSE s.tag = ANY (w.tags) END
                AND (w.capacity IS NULL OR w.capacity > (
                    SELECT count(*) FROM sessions x
                    WHERE x.worker_id = w.worker_id AND x.incarnation = w.incarnation AND x.locked_until > clock()))));
    UPDATE sessions s SET locked_until = clock(), freed_by = 'holder_busy' WHERE s.session_id = ANY (freed);
    WITH others AS MATERIALIZED (
        SELECT q.instance_id, q.execution_id, q.activity_id
        FROM worker_queue q
        WHERE q.session_id = ANY (freed) AND q.route <> 'new'
        LIMIT _reroute FOR NO KEY UPDATE OF q SKIP LOCKED
    )
    UPDATE worker_queue q SET route = 'new' FROM others o
    WHERE q.instance_id = o.instance_id AND q.execution_id = o.execution_id AND q.activity_id = o.activity_id;
    RETURN freed;
END $$;
