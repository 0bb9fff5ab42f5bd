-- Ordered work items of a session: they run one after the other, in the order in which they were committed.

-- The session in whose order an item stands, and its place there; NULL: it is not ordered. Only the first one has its
-- session in session_id, and a route that fetches read. Those behind it are `blocked`: their route is that, and they have
-- no session_id, so that no statement which looks for the items of a session finds them, those of the release before
-- included.
ALTER TABLE worker_queue
    ADD COLUMN order_session text COLLATE "C",
    ADD COLUMN order_number bigint;
CREATE INDEX worker_queue_order ON worker_queue (order_session, order_number) WHERE order_session IS NOT NULL;

-- Locks the orders of sessions, until the end of the transaction, for one that adds to them; NULLs are skipped. Between
-- `instances` and `worker_queue` in the order of locks.
--
-- The advisory lock is for those who add. The lock on the last item is for those who remove: a transaction that removes that one
-- waits for us, and then sees what we have added behind it; if it is being removed, we wait and look again. A transaction that
-- removes another one sees the last one.
CREATE FUNCTION lock_order(_session text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    lasts bigint;
    locked bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(o.key)
    FROM (
        SELECT DISTINCT hashtextextended('affinity order ' || current_schema() || ' ' || s.id, 0) AS key
        FROM unnest(_session) AS s (id) WHERE s.id IS NOT NULL ORDER BY 1 OFFSET 0) o;
    LOOP
        WITH tail AS MATERIALIZED (
            SELECT s.id, (
                SELECT q.order_number FROM worker_queue q WHERE q.order_session = s.id
                ORDER BY q.order_number DESC LIMIT 1) AS number
            FROM (SELECT DISTINCT id FROM unnest(_session) AS u (id) WHERE id IS NOT NULL) s
        ), item AS MATERIALIZED (
            SELECT FROM tail t JOIN worker_queue q ON q.order_session = t.id AND q.order_number = t.number
            ORDER BY q.instance_id, q.execution_id, q.activity_id FOR KEY SHARE OF q
        )
        SELECT (SELECT count(number) FROM tail), (SELECT count(*) FROM item) INTO lasts, locked;
        EXIT WHEN locked = lasts;
    END LOOP;
END $$;

-- Where new items stand in the orders of their sessions, which are locked: by element, the number, and whether another
-- item is before it. Elements that are NULL have neither.
CREATE FUNCTION places_in_order(_session text[], OUT numbers bigint[], OUT blocked boolean[]) LANGUAGE plpgsql AS $$
BEGIN
    SELECT array_agg(p.last + p.place ORDER BY p.k), array_agg(p.last > 0 OR p.place > 1 ORDER BY p.k)
    INTO numbers, blocked
    FROM (
        SELECT s.k, row_number() OVER (PARTITION BY s.id ORDER BY s.k) AS place,
            CASE WHEN s.id IS NOT NULL THEN coalesce((
                SELECT q.order_number FROM worker_queue q WHERE q.order_session = s.id
                ORDER BY q.order_number DESC LIMIT 1), 0) END AS last
        FROM unnest(_session) WITH ORDINALITY AS s (id, k)) p;
END $$;

-- The first item of an order is removed: the next one takes its place, with the route that its session has. It waits for
-- a transaction that removes that one at this moment.
CREATE FUNCTION promote_next() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    following worker_queue;
BEGIN
    LOOP
        SELECT q.* INTO following FROM worker_queue q WHERE q.order_session = OLD.order_session
        ORDER BY q.order_number LIMIT 1;
        EXIT WHEN NOT FOUND OR following.route <> 'blocked';
        UPDATE worker_queue q
        SET session_id = q.order_session, route = coalesce(
            (SELECT coalesce(m.route, 'w:' || h.worker_id)
             FROM held_sessions h LEFT JOIN planned_moves m ON m.session_id = h.session_id
             WHERE h.session_id = OLD.order_session), 'new')
        WHERE q.instance_id = following.instance_id AND q.execution_id = following.execution_id
          AND q.activity_id = following.activity_id;
        EXIT WHEN FOUND;
    END LOOP;
    RETURN NULL;
END $$;

CREATE TRIGGER worker_queue_order AFTER DELETE ON worker_queue FOR EACH ROW
WHEN (OLD.order_session IS NOT NULL AND OLD.route <> 'blocked')
EXECUTE FUNCTION promote_next();

-- Opens an instance again, as `reset_instance_2`. Ordered items of it stand last in their orders.
CREATE FUNCTION reset_instance_3(
    _instance text, _birth text, _execution bigint, _events bigint, _keep bigint, _event text[], _custom_status text,
    _message_instance text[], _message_birth text[], _message text[], _message_delay float8[], _message_timer bigint[],
    _item_activity bigint[], _item_name text[], _item_session text[], _item_payload text[],
    _watch_session text[], _watch text[], _item_order text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    numbers bigint[]; blocked boolean[];
BEGIN
    PERFORM FROM instances WHERE instance_id = _instance FOR NO KEY UPDATE;
    PERFORM lock_order(_item_order);
    IF NOT reset_instance_2(_instance, _birth, _execution, _events, _keep, _event, _custom_status, _message_instance,
        _message_birth, _message, _message_delay, _message_timer, _item_activity, _item_name, _item_session,
        _item_payload, _watch_session, _watch)
    THEN
        RETURN false;
    END IF;
    SELECT p.numbers, p.blocked INTO numbers, blocked FROM places_in_order(_item_order) p;
    UPDATE worker_queue q
    SET order_session = w.session_id, order_number = numbers[w.k],
        session_id = CASE WHEN blocked[w.k] THEN NULL ELSE q.session_id END,
        route = CASE WHEN blocked[w.k] THEN 'blocked' ELSE q.route END
    FROM unnest(_item_order) WITH ORDINALITY AS w (session_id, k)
    WHERE w.session_id IS NOT NULL
      AND q.instance_id = _instance AND q.execution_id = _execution + 1 AND q.activity_id = _item_activity[w.k];
    RETURN true;
END $$;
