-- Work items asleep: see `NewWorkItem.asleep`. They are in no queue, and no verb of a queue finds them.

-- Of each instance the last one; gone with the execution in which it was scheduled. While one is here, its journal has no
-- input behind the watermark.
CREATE TABLE sleeping_items (
    instance_id  TEXT PRIMARY KEY,
    execution_id INTEGER NOT NULL,
    activity_id  INTEGER NOT NULL,
    name         TEXT NOT NULL,
    session_id   TEXT,
    payload      TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Triggers, so that inputs, ends and deletions by the release before wake and remove them too.

-- The route is that of a new item; a tag of the session is added to it as to all. An item that is in the queue already
-- must not refuse the input.
CREATE TRIGGER sleeping_item_woken AFTER INSERT ON journal_entries
WHEN NEW.is_input AND EXISTS (
    SELECT 1 FROM journals AS j CROSS JOIN sleeping_items AS z ON z.instance_id = j.session_id
    WHERE j.journal_id = NEW.journal_id)
BEGIN
    INSERT INTO worker_queue (
        instance_id, execution_id, activity_id, name, session_id, route, visible_at, enqueued_at, payload
    )
    SELECT z.instance_id, z.execution_id, z.activity_id, z.name, z.session_id,
           CASE WHEN z.session_id IS NULL THEN 'free'
                WHEN w.worker_id IS NULL THEN 'new'
                WHEN n.worker_id IS NULL THEN 'w:' || w.worker_id
                ELSE 'new:' || n.worker_id END,
           NEW.recorded_at, NEW.recorded_at, z.payload
    FROM journals AS j
    CROSS JOIN sleeping_items AS z ON z.instance_id = j.session_id
    LEFT JOIN sessions AS s ON s.session_id = z.session_id AND s.locked_until > NEW.recorded_at
    LEFT JOIN workers AS w
        ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation AND w.locked_until > NEW.recorded_at
    LEFT JOIN workers AS n
        ON n.worker_id = s.next_worker AND (s.next_until <= NEW.recorded_at) IS NOT TRUE
        AND n.locked_until > NEW.recorded_at AND NOT n.draining
    WHERE j.journal_id = NEW.journal_id
    ON CONFLICT DO NOTHING;
    DELETE FROM sleeping_items WHERE instance_id = (SELECT session_id FROM journals WHERE journal_id = NEW.journal_id);
END;

CREATE TRIGGER sleeping_item_ended AFTER UPDATE OF status, execution_id ON instances
WHEN NEW.execution_id <> OLD.execution_id OR NEW.status IN ('completed', 'failed', 'cancelled')
BEGIN
    DELETE FROM sleeping_items WHERE instance_id = NEW.instance_id;
END;

CREATE TRIGGER sleeping_item_deleted AFTER DELETE ON instances
BEGIN
    DELETE FROM sleeping_items WHERE instance_id = OLD.instance_id;
END;
