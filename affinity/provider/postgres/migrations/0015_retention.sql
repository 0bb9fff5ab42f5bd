-- Executions that have ended, by the time of their end: with their instance (is_last), or because `continue_as_new` or a
-- reset began another one. Retention goes by this table. A column of `instances` would need an index there, and updates of
-- indexed columns are no heap-only updates.
CREATE TABLE ended_executions (
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    is_last boolean NOT NULL,
    ended_at timestamptz NOT NULL,
    PRIMARY KEY (instance_id, execution_id)
);
CREATE INDEX ended_instances ON ended_executions (ended_at) WHERE is_last;
CREATE INDEX ended_histories ON ended_executions (ended_at) WHERE NOT is_last;

-- Triggers, so that each statement that ends an execution or removes an instance is recorded, those of the release before
-- too. With the rights of the role that migrated: roles that were given rights by hand need none to the new table.
CREATE FUNCTION record_ended_execution() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO ended_executions AS e (instance_id, execution_id, is_last, ended_at)
    VALUES (NEW.instance_id, OLD.execution_id, NEW.execution_id = OLD.execution_id, NEW.updated_at)
    ON CONFLICT (instance_id, execution_id) DO UPDATE SET is_last = excluded.is_last, ended_at = excluded.ended_at;
    RETURN NULL;
END $$;
CREATE FUNCTION forget_ended_executions() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    DELETE FROM ended_executions WHERE instance_id = OLD.instance_id;
    RETURN NULL;
END $$;
DO $do$
BEGIN
    EXECUTE format('ALTER FUNCTION record_ended_execution() SET search_path = %I, pg_temp', current_schema);
    EXECUTE format('ALTER FUNCTION forget_ended_executions() SET search_path = %I, pg_temp', current_schema);
END $do$;

CREATE TRIGGER execution_ended AFTER UPDATE OF status, execution_id ON instances
FOR EACH ROW WHEN (
    NEW.execution_id <> OLD.execution_id
    OR NEW.status IN ('completed', 'failed', 'cancelled') AND OLD.status NOT IN ('completed', 'failed', 'cancelled'))
EXECUTE FUNCTION record_ended_execution();
CREATE TRIGGER instance_deleted AFTER DELETE ON instances FOR EACH ROW EXECUTE FUNCTION forget_ended_executions();

-- Where the last sweep stopped to remove ended instances: the next one goes on from there.
ALTER TABLE sweeps ADD COLUMN pruned_to timestamptz NOT NULL DEFAULT '-infinity';
