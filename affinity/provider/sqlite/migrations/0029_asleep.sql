-- Work items asleep: see `NewWorkItem.asleep`. They are in no queue, and no verb of a queue finds them.

-- Of each instance the last one; gone with the execution in which it was scheduled. While one is here, its journal has no
-- input behind the watermark, except inputs without a message, which wake nothing.
CREATE TABLE asleep_items (
    instance_id  TEXT PRIMARY KEY,
    execution_id INTEGER NOT NULL,
    activity_id  INTEGER NOT NULL,
    name         TEXT NOT NULL,
    session_id   TEXT,
    payload      TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The release before knows no such items, and sends a message with each input: that wakes. The route is that of a new item;
-- a tag of the session is added to it as to all. An item that is in the queue already must not refuse the input.
CREATE TRIGGER asleep_item_woken AFTER INSERT ON orchestrator_queue
WHEN EXISTS (
    SELECT 1 FROM asleep_items AS z
    CROSS JOIN journals AS j ON j.session_id = z.instance_id
    CROSS JOIN journal_entries AS i INDEXED BY journal_entries_inputs
        ON i.journal_id = j.journal_id AND i.is_input AND i.seq > j.processed
    WHERE z.instance_id = NEW.instance_id)
BEGIN
    INSERT INTO worker_queue (
        instance_id, execution_id, activity_id, name, session_id, route, visible_at, enqueued_at, payload
    )
    SELECT z.instance_id, z.execution_id, z.activity_id, z.name, z.session_id,
           CASE WHEN z.session_id IS NULL THEN 'free'
                WHEN w.worker_id IS NULL THEN 'new'
                WHEN n.worker_id IS NULL THEN 'w:' || w.worker_id
                ELSE 'new:' || n.worker_id END,
           NEW.visible_at, NEW.visible_at, z.payload
    FROM asleep_items AS z
    LEFT JOIN sessions AS s ON s.session_id = z.session_id AND s.locked_until > NEW.visible_at
    LEFT JOIN workers AS w
        ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation AND w.locked_until > NEW.visible_at
    LEFT JOIN workers AS n
        ON n.worker_id = s.next_worker AND (s.next_until <= NEW.visible_at) IS NOT TRUE
        AND n.locked_until > NEW.visible_at AND NOT n.draining
    WHERE z.instance_id = NEW.instance_id
    ON CONFLICT DO NOTHING;
    DELETE FROM asleep_items WHERE instance_id = NEW.instance_id;
END;

-- By triggers, as the statements of the release before end and delete instances too.
CREATE TRIGGER asleep_item_ended AFTER UPDATE OF status, execution_id ON instances
WHEN NEW.execution_id <> OLD.execution_id OR NEW.status IN ('completed', 'failed', 'cancelled')
BEGIN
    DELETE FROM asleep_items WHERE instance_id = NEW.instance_id;
END;

CREATE TRIGGER asleep_item_deleted AFTER DELETE ON instances
BEGIN
    DELETE FROM asleep_items WHERE instance_id = OLD.instance_id;
END;
