-- The session that an instance was started with. Its children have it too: by a trigger, so that those which the release
-- before creates (`commit_turns_1`) have it as well.
ALTER TABLE instances ADD COLUMN session_id text COLLATE "C";
CREATE INDEX instances_session ON instances (session_id, created_at, instance_id) WHERE session_id IS NOT NULL;

CREATE FUNCTION inherit_session() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT p.session_id INTO NEW.session_id FROM instances p
    WHERE p.instance_id = NEW.parent_id AND (NEW.parent_birth IS NULL OR p.birth = NEW.parent_birth);
    RETURN NEW;
END $$;
CREATE TRIGGER child_created BEFORE INSERT ON instances
FOR EACH ROW WHEN (NEW.parent_id IS NOT NULL AND NEW.session_id IS NULL)
EXECUTE FUNCTION inherit_session();
