-- What removes rows of sessions looks for watches with the snapshot of its statement, which may be older than its locks:
-- it would miss a watch whose commit had the row locked until then. So each row is judged once more when it is locked. By
-- a trigger: it holds for the release before as well; and with a path of its own, for an administrator's deletion too.
CREATE FUNCTION keep_watched_session() RETURNS trigger LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM session_watches w WHERE w.session_id = OLD.session_id;
    RETURN CASE WHEN NOT FOUND THEN OLD END;
END $$;
CREATE TRIGGER session_removed BEFORE DELETE ON sessions
FOR EACH ROW EXECUTE FUNCTION keep_watched_session();
