-- Executions that have ended, by the time of their end: with their instance (is_last), or because `continue_as_new` or a
-- reset began another one. Retention goes by this table.
CREATE TABLE ended_executions (
    instance_id  TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    is_last      INTEGER NOT NULL,
    ended_at     REAL NOT NULL,
    PRIMARY KEY (instance_id, execution_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX ended_instances ON ended_executions (ended_at) WHERE is_last;
CREATE INDEX ended_histories ON ended_executions (ended_at) WHERE NOT is_last;

-- Triggers, so that each statement that ends an execution or removes an instance is recorded, those of the release before
-- too.
CREATE TRIGGER execution_ended AFTER UPDATE OF status, execution_id ON instances
WHEN NEW.execution_id <> OLD.execution_id
  OR NEW.status IN ('completed', 'failed', 'cancelled') AND OLD.status NOT IN ('completed', 'failed', 'cancelled')
BEGIN
    INSERT INTO ended_executions (instance_id, execution_id, is_last, ended_at)
    VALUES (NEW.instance_id, OLD.execution_id, NEW.execution_id = OLD.execution_id, NEW.updated_at)
    ON CONFLICT (instance_id, execution_id) DO UPDATE SET is_last = excluded.is_last, ended_at = excluded.ended_at;
END;

CREATE TRIGGER instance_deleted AFTER DELETE ON instances
BEGIN
    DELETE FROM ended_executions WHERE instance_id = OLD.instance_id;
END;

-- The last change of an ended instance is its end; of an earlier execution no more is known than that it ended before.
INSERT INTO ended_executions (instance_id, execution_id, is_last, ended_at)
SELECT instance_id, execution_id, 1, updated_at FROM instances WHERE status IN ('completed', 'failed', 'cancelled')
UNION ALL
SELECT i.instance_id, h.execution_id, 0, i.updated_at
FROM instances AS i CROSS JOIN history AS h ON h.instance_id = i.instance_id AND h.event_id = 1
WHERE i.execution_id > 1 AND h.execution_id < i.execution_id;

-- Where the last sweep stopped to remove ended instances: the next one goes on from there.
INSERT INTO counters (name, value) VALUES ('pruned_to', 0);
