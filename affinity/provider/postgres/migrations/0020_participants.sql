-- Who takes part in a session, to be found by.
CREATE INDEX session_states_participants ON session_states USING gin (participants jsonb_path_ops)
WHERE participants <> '[]';
