-- The participants once more, to be found by. By triggers, so that those which the release before writes are found too; a
-- write that leaves them as they are has nothing to do here. What is no list of texts is left out.
CREATE TABLE session_participants (
    participant TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    PRIMARY KEY (participant, session_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_participants_by_session ON session_participants (session_id);

INSERT OR IGNORE INTO session_participants (participant, session_id)
SELECT j.value, r.session_id
FROM session_states AS r
CROSS JOIN json_each(iif(json_valid(r.participants), iif(json_type(r.participants) = 'array', r.participants, '[]'), '[]')) AS j
WHERE j.type = 'text';

CREATE TRIGGER session_states_written AFTER INSERT ON session_states WHEN NEW.participants <> '[]'
BEGIN
    INSERT OR IGNORE INTO session_participants (participant, session_id)
    SELECT j.value, NEW.session_id
    FROM json_each(
        iif(json_valid(NEW.participants), iif(json_type(NEW.participants) = 'array', NEW.participants, '[]'), '[]')
    ) AS j
    WHERE j.type = 'text';
END;

CREATE TRIGGER session_states_rewritten AFTER UPDATE OF participants ON session_states
WHEN NEW.participants <> OLD.participants
BEGIN
    DELETE FROM session_participants WHERE session_id = NEW.session_id;
    INSERT OR IGNORE INTO session_participants (participant, session_id)
    SELECT j.value, NEW.session_id
    FROM json_each(
        iif(json_valid(NEW.participants), iif(json_type(NEW.participants) = 'array', NEW.participants, '[]'), '[]')
    ) AS j
    WHERE j.type = 'text';
END;

CREATE TRIGGER session_states_removed AFTER DELETE ON session_states WHEN OLD.participants <> '[]'
BEGIN
    DELETE FROM session_participants WHERE session_id = OLD.session_id;
END;
