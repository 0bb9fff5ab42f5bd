CREATE TABLE IF NOT EXISTS affinity_adk_schema (
    version integer NOT NULL
);

CREATE TABLE IF NOT EXISTS affinity_adk_sessions (
    app_name text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    session_key text COLLATE "C" NOT NULL,  -- another one if a session is deleted and made again
    state text NOT NULL,  -- JSON; without the state of the user and of the app
    updated_at double precision NOT NULL,  -- seconds since 1970: time of the newest event
    revision bigint NOT NULL,  -- number of events: what a writer must have read
    PRIMARY KEY (app_name, user_id, session_id)
);

CREATE TABLE IF NOT EXISTS affinity_adk_events (
    session_key text COLLATE "C" NOT NULL,
    number bigint NOT NULL,  -- place in the session, from 1
    happened_at double precision NOT NULL,  -- seconds since 1970, of the event
    event text NOT NULL,  -- JSON
    PRIMARY KEY (session_key, number)
);

CREATE TABLE IF NOT EXISTS affinity_adk_app_states (
    app_name text COLLATE "C" NOT NULL,
    state text NOT NULL,  -- JSON; keys without the prefix
    PRIMARY KEY (app_name)
);

CREATE TABLE IF NOT EXISTS affinity_adk_user_states (
    app_name text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    state text NOT NULL,  -- JSON; keys without the prefix
    PRIMARY KEY (app_name, user_id)
);
