-- Why a session has moved, and where it will go.
ALTER TABLE sessions
    -- Why its lock was ended before its time: a reason of session_moves. NULL once it is claimed again.
    ADD COLUMN freed_by text COLLATE "C",
    -- A planned move: the worker that may take the session from its holder while no work of it runs, until when
    -- (NULL: without end), and the reason that the move will have.
    ADD COLUMN next_worker text COLLATE "C",
    ADD COLUMN next_until timestamptz,
    ADD COLUMN next_reason text COLLATE "C";
