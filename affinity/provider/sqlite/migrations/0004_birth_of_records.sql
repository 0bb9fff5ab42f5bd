-- Each record has a birth token, too: versions begin again with a record that is deleted and made anew. Those that are
-- here, and what the release before makes, have ''. The column stands behind the state, which may be long: it is read
-- from the index, which a write of a record that there is does not change.
ALTER TABLE session_states ADD COLUMN birth TEXT NOT NULL DEFAULT '';

CREATE INDEX session_states_by_birth ON session_states (session_id, birth);
