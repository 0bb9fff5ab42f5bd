-- Ordered work items of a session: they run one after the other, in the order in which they were committed.

-- The session in whose order an item stands, and its place there; NULL: it is not ordered. Only the first one has its
-- session in session_id, and a route that fetches read. Those behind it are `blocked`: their route is that, and they have
-- no session_id, so that no statement which looks for the items of a session finds them, those of the release before
-- included.
ALTER TABLE worker_queue ADD COLUMN order_session TEXT;
ALTER TABLE worker_queue ADD COLUMN order_number INTEGER;

CREATE INDEX worker_queue_by_order ON worker_queue (order_session, order_number) WHERE order_session IS NOT NULL;

-- The first item of an order is removed: the next one takes its place. Its route is that of a planned move of the session,
-- or else the one to its holder that the first one had; a stale one is repaired, as all are.
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
