-- Instances of the statuses that few of them have, for listings. A table, since an index of `instances` with the status
-- would keep the first and the last turn of each instance from being heap-only updates.
CREATE TABLE instances_by_status (
    status text COLLATE "C" NOT NULL, -- suspended, failed, cancelled
    created_at timestamptz NOT NULL,
    instance_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (status, created_at, instance_id)
);

-- Triggers, so that each statement that changes a status is recorded, those of the release before too. With the rights of
-- the role that migrated: a role that only ends instances needs none to this table.
CREATE FUNCTION move_status() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    DELETE FROM instances_by_status s
    WHERE s.status = OLD.status AND s.created_at = OLD.created_at AND s.instance_id = OLD.instance_id;
    IF TG_OP = 'UPDATE' AND NEW.status IN ('suspended', 'failed', 'cancelled') THEN
        INSERT INTO instances_by_status (status, created_at, instance_id)
        VALUES (NEW.status, NEW.created_at, NEW.instance_id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
DO $do$
BEGIN
    EXECUTE format('ALTER FUNCTION move_status() SET search_path = %I, pg_temp', current_schema);
    REVOKE EXECUTE ON FUNCTION move_status() FROM PUBLIC;
END $do$;
CREATE TRIGGER status_changed AFTER UPDATE OF status ON instances FOR EACH ROW WHEN (
    NEW.status <> OLD.status
    AND (NEW.status IN ('suspended', 'failed', 'cancelled') OR OLD.status IN ('suspended', 'failed', 'cancelled')))
EXECUTE FUNCTION move_status();
CREATE TRIGGER listed_instance_deleted AFTER DELETE ON instances
FOR EACH ROW WHEN (OLD.status IN ('suspended', 'failed', 'cancelled')) EXECUTE FUNCTION move_status();
