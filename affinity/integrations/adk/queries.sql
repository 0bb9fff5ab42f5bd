-- create: a session, without events; no row: it is there already
INSERT INTO affinity_adk_sessions (app_name, user_id, session_id, session_key, state, updated_at, revision)
VALUES (:app, :user, :session, :key, :state, :at, 0)
ON CONFLICT (app_name, user_id, session_id) DO NOTHING
RETURNING 1;

-- session: without its events
SELECT session_key, state, updated_at, revision FROM affinity_adk_sessions
WHERE app_name = :app AND user_id = :user AND session_id = :session;

-- lock: the row of a session, until the transaction ends
UPDATE affinity_adk_sessions SET revision = revision
WHERE app_name = :app AND user_id = :user AND session_id = :session
RETURNING session_key, state, updated_at, revision;

-- update: a session with a new event
UPDATE affinity_adk_sessions SET state = :state, updated_at = :at, revision = :number
WHERE app_name = :app AND user_id = :user AND session_id = :session;

-- append: an event
INSERT INTO affinity_adk_events (session_key, number, happened_at, event)
VALUES (:key, :number, :at, :event);

-- events: the newest ones that a caller wants of those up to a revision, newest first
SELECT event FROM affinity_adk_events
WHERE session_key = :key AND number <= :revision AND (CAST(:after AS double precision) IS NULL OR happened_at >= :after)
ORDER BY number DESC LIMIT :most;

-- event: one of a session
SELECT event FROM affinity_adk_events WHERE session_key = :key AND number = :number;

-- sessions: of an app, or of a user of it, without their events
SELECT user_id, session_id, session_key, state, updated_at, revision FROM affinity_adk_sessions
WHERE app_name = :app AND (CAST(:user AS text) IS NULL OR user_id = :user)
ORDER BY updated_at, user_id, session_id;

-- delete_events: of a session
DELETE FROM affinity_adk_events WHERE session_key = :key;

-- delete: a session; no row: it is not there
DELETE FROM affinity_adk_sessions WHERE app_name = :app AND user_id = :user AND session_id = :session
RETURNING session_key;

-- app_state: of an app
SELECT state FROM affinity_adk_app_states WHERE app_name = :app;

-- lock_app_state: its row, until the transaction ends
INSERT INTO affinity_adk_app_states (app_name, state) VALUES (:app, '{}')
ON CONFLICT (app_name) DO UPDATE SET state = affinity_adk_app_states.state
RETURNING state;

-- set_app_state: of an app
UPDATE affinity_adk_app_states SET state = :state WHERE app_name = :app;

-- user_state: of a user of an app
SELECT state FROM affinity_adk_user_states WHERE app_name = :app AND user_id = :user;

-- lock_user_state: its row, until the transaction ends
INSERT INTO affinity_adk_user_states (app_name, user_id, state) VALUES (:app, :user, '{}')
ON CONFLICT (app_name, user_id) DO UPDATE SET state = affinity_adk_user_states.state
RETURNING state;

-- set_user_state: of a user of an app
UPDATE affinity_adk_user_states SET state = :state WHERE app_name = :app AND user_id = :user;

-- user_states: of all users of an app
SELECT user_id, state FROM affinity_adk_user_states
WHERE app_name = :app AND (CAST(:user AS text) IS NULL OR user_id = :user);

-- delete_user_state: of a user of an app
DELETE FROM affinity_adk_user_states WHERE app_name = :app AND user_id = :user;

-- version: of the tables
SELECT version FROM affinity_adk_schema;

-- set_version: once
INSERT INTO affinity_adk_schema (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM affinity_adk_schema);
