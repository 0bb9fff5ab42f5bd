-- A session's row may be made by whoever writes its record without a lease: no worker has held it then ('', which is no
-- worker's name), and the claim that follows is the first, of which nobody is told.
DROP TRIGGER session_moved ON sessions;
CREATE TRIGGER session_moved AFTER UPDATE OF worker_id, incarnation ON sessions
FOR EACH ROW WHEN (OLD.worker_id <> '' AND (OLD.worker_id <> NEW.worker_id OR OLD.incarnation <> NEW.incarnation))
EXECUTE FUNCTION tell_watchers();
