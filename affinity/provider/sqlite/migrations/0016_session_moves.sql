-- Why a session has moved, and where it will go.

-- Why its lock was ended before its time: a reason of session_moves. NULL once it is claimed again.
ALTER TABLE sessions ADD COLUMN freed_by TEXT;
-- A planned move: the worker that may take the session from its holder while no work of it runs, until when (NULL:
-- without end), and the reason that the move will have.
ALTER TABLE sessions ADD COLUMN next_worker TEXT;
ALTER TABLE sessions ADD COLUMN next_until REAL;
ALTER TABLE sessions ADD COLUMN next_reason TEXT;
