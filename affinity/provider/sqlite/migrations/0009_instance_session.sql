-- The session that an instance was started with. Its children have it too: by a trigger, so that those which the release
-- before creates have it as well.
ALTER TABLE instances ADD COLUMN session_id TEXT;
CREATE INDEX instances_by_session ON instances (session_id, created_at, instance_id) WHERE session_id IS NOT NULL;

CREATE TRIGGER instances_inherit_session AFTER INSERT ON instances
WHEN NEW.parent_id IS NOT NULL AND NEW.session_id IS NULL
BEGIN
    UPDATE instances SET session_id = p.session_id
    FROM instances AS p
    WHERE instances.instance_id = NEW.instance_id AND p.instance_id = NEW.parent_id AND p.session_id IS NOT NULL
      AND (NEW.parent_birth IS NULL OR p.birth = NEW.parent_birth);
END;
