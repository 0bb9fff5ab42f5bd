-- Keys of messages, so that an instance gets one message of each, and the replies to these messages. They are removed with
-- their instance, or when they are old (`prune_histories`).
CREATE TABLE message_keys (
    id          INTEGER PRIMARY KEY,
    instance_id TEXT NOT NULL,
    birth       TEXT NOT NULL,
    key         TEXT NOT NULL,
    reply       TEXT,
    updated_at  REAL NOT NULL,
    UNIQUE (instance_id, birth, key)
) STRICT;

CREATE INDEX message_keys_by_age ON message_keys (updated_at);

CREATE TRIGGER message_keys_deleted AFTER DELETE ON instances
BEGIN
    DELETE FROM message_keys WHERE instance_id = OLD.instance_id;
END;
