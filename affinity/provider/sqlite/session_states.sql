-- fences: of writes to some sessions: their records, and the epochs of their leases
SELECT json_group_array(json_array(j.value, r.version, r.epoch, r.turn, r.labels, r.participants, s.epoch))
FROM json_each(:session_ids) AS j
LEFT JOIN session_states AS r ON r.session_id = j.value
LEFT JOIN sessions AS s ON s.session_id = j.value;

-- generation: of one record
SELECT generation FROM session_states WHERE session_id = :session_id;

-- write: a record that has passed its fences; written without a lease, it keeps its epoch
INSERT INTO session_states (
    session_id, version, epoch, created_at, updated_at, schema_version, encoding, kind, name, parent, message_count,
    turn, labels, participants, state, generation
)
VALUES (
    :session_id, 1, :epoch, coalesce(min(:created_at, :now), :now), coalesce(min(:updated_at, :now), :now),
    :schema_version, :encoding, :kind, :name, :parent, :message_count,
    :turn, :labels, :participants, :state, coalesce(:generation, lower(hex(randomblob(8))))
)
ON CONFLICT (session_id) DO UPDATE SET
    version = version + 1,
    epoch = coalesce(excluded.epoch, epoch),
    created_at = coalesce(min(:created_at, :now), created_at),
    updated_at = excluded.updated_at,
    schema_version = excluded.schema_version,
    encoding = excluded.encoding,
    kind = excluded.kind,
    name = excluded.name,
    parent = excluded.parent,
    message_count = excluded.message_count,
    turn = excluded.turn,
    labels = excluded.labels,
    participants = excluded.participants,
    state = excluded.state;

-- unlabel: forget the labels of sessions
DELETE FROM session_labels WHERE session_id IN (SELECT value FROM json_each(:rows));

-- label: the labels of sessions
INSERT INTO session_labels (session_id, key, value)
SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows);

-- forget_participants: of sessions
DELETE FROM session_participants WHERE session_id IN (SELECT value FROM json_each(:rows));

-- add_participants: of sessions
INSERT OR IGNORE INTO session_participants (session_id, participant)
SELECT value ->> 0, value ->> 1 FROM json_each(:rows);

-- load: one record
SELECT session_id, state, encoding, schema_version, kind, name, parent, labels, message_count, participants,
       version, generation, epoch, turn, created_at, updated_at
FROM session_states WHERE session_id = :session_id;

-- doomed: of the named records, the ones that may go; with `whole` only if all of their family may, and none has a child that
-- is not named
WITH named (session_id, family, goes) AS MATERIALIZED (
    SELECT r.session_id, j.value ->> 1,
           (r.version = j.value ->> 2) IS NOT FALSE
           AND (j.value ->> 3 IS NULL OR j.value ->> 3 = r.generation)
           AND (NOT :idle_only OR NOT EXISTS (SELECT 1 FROM worker_queue AS q WHERE q.session_id = r.session_id)
                                  AND NOT EXISTS (
                                      SELECT 1 FROM sessions AS s CROSS JOIN workers AS w
                                          ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation
                                      WHERE s.session_id = r.session_id AND s.locked_until > :now AND w.locked_until > :now))
           AND (NOT :whole OR NOT EXISTS (
               SELECT 1 FROM session_states AS c INDEXED BY session_states_by_parent
               WHERE c.parent = r.session_id AND c.session_id NOT IN (SELECT value ->> 0 FROM json_each(:rows))))
    FROM json_each(:rows) AS j CROSS JOIN session_states AS r ON r.session_id = j.value ->> 0
)
SELECT json_group_array(session_id) FROM named WHERE family NOT IN (SELECT family FROM named WHERE NOT goes);

-- delete: records
DELETE FROM session_states WHERE session_id IN (SELECT value FROM json_each(:rows));

-- held_by: sessions that a worker holds, unless they are too many
SELECT json_group_array(session_id) FROM (
    SELECT s.session_id FROM workers AS w
    CROSS JOIN sessions AS s ON s.worker_id = w.worker_id AND s.locked_until > :now AND s.incarnation = w.incarnation
    WHERE w.worker_id = :holder AND w.locked_until > :now
    LIMIT :few + 1
);

-- beginning: sessions whose ids begin so, unless they are too many
SELECT json_group_array(session_id) FROM (
    SELECT session_id FROM session_states WHERE session_id >= :prefix AND session_id < :prefix_end LIMIT :few + 1
);

-- labelled: sessions that have a label, unless they are too many
SELECT json_group_array(session_id) FROM (
    SELECT session_id FROM session_labels WHERE key = :key AND value = :value LIMIT :few + 1
);

-- created: sessions whose records were created since, unless they are too many
SELECT json_group_array(session_id) FROM (
    SELECT session_id FROM session_states WHERE created_at > :created_after LIMIT :few + 1
);

-- participating: sessions that a participant takes part in, unless they are too many
SELECT json_group_array(session_id) FROM (
    SELECT session_id FROM session_participants WHERE participant = :participant LIMIT :few + 1
);

-- orphans: sessions whose parent has no record, unless they are too many; each parent is looked up one time
WITH RECURSIVE parents (parent) AS (
    SELECT min(c.parent) FROM session_states AS c INDEXED BY session_states_by_parent WHERE c.parent IS NOT NULL
    UNION ALL
    SELECT (SELECT min(c.parent) FROM session_states AS c INDEXED BY session_states_by_parent WHERE c.parent > p.parent)
    FROM parents AS p WHERE p.parent IS NOT NULL
)
SELECT json_group_array(session_id) FROM (
    SELECT c.session_id FROM parents AS p
    CROSS JOIN session_states AS c INDEXED BY session_states_by_parent ON c.parent = p.parent
    WHERE NOT EXISTS (SELECT 1 FROM session_states AS h WHERE h.session_id = p.parent)
    LIMIT :few + 1
);

-- children: one page of the records of some parents, which come in order, as the records do
SELECT json_group_array(session_id) FROM (
    SELECT c.session_id
    FROM json_each(:parents) AS j
    CROSS JOIN session_states AS c INDEXED BY session_states_by_parent
        ON c.parent = j.value AND (c.updated_at, c.session_id) > (
            iif(j.value = :after_parent, :after_time, -9e999), iif(j.value = :after_parent, :after_id, ''))
    LIMIT :limit
);

-- ancestors: the records of a session, of its parent, and so on
WITH RECURSIVE up (session_id, parent) AS (
    SELECT session_id, parent FROM session_states WHERE session_id = :session_id
    UNION
    SELECT p.session_id, p.parent FROM up CROSS JOIN session_states AS p ON p.session_id = up.parent
    LIMIT :limit
)
SELECT json_group_array(session_id) FROM up;
