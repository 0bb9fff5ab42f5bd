-- present: the journal of a session, and how it was made
SELECT json_group_array(json_array(j.journal_id, j.last_seq, j.lineage, j.operator, json((
    SELECT json_group_array(p.parent_id) FROM (
        SELECT parent_id FROM journal_parents WHERE journal_id = j.journal_id ORDER BY position) AS p))))
FROM journals AS j WHERE j.session_id = :session_id;

-- has_moved: whether a session has a greater epoch
SELECT EXISTS (SELECT 1 FROM sessions WHERE session_id = :session_id AND epoch > :epoch);

-- taken: whether the id of a new journal, or of its session, is in use
SELECT EXISTS (SELECT 1 FROM instances WHERE instance_id = :session_id)
    OR EXISTS (SELECT 1 FROM session_states WHERE session_id = :session_id)
    OR EXISTS (SELECT 1 FROM journals WHERE journal_id = :journal_id);

-- sources: journals by their ids
SELECT json_group_array(json_array(j.journal_id, j.session_id, j.first_seq, j.last_seq, j.processed))
FROM json_each(:journal_ids) AS a CROSS JOIN journals AS j ON j.journal_id = a.value;

-- create: a journal, as it is before its own entries
INSERT INTO journals (
    journal_id, session_id, kind, parent, first_seq, last_seq, processed, base_id, base_seq, home, lineage, operator,
    extras, title, owner, labels, oldest_at, created_at, updated_at, used
)
VALUES (
    :journal_id, :session_id, :kind, :parent, :first_seq, :last_seq, :processed, :base_id, :base_seq, :home, :lineage,
    :operator, :extras, :title, :owner, :labels, :now, :now, :now, json_patch(
        coalesce((SELECT used FROM journals WHERE journal_id = :merged_id), '{}'),
        coalesce((SELECT used FROM journals WHERE journal_id = :base_id), '{}'))
);

-- add_parents: of a new journal
INSERT INTO journal_parents (journal_id, position, parent_id)
SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows);

-- merge: copy the entries of the right journal that the left one, which is the base of the new one, does not have: of each
-- common part, the entries behind the left journal's end; then the entries that neither has copied from the other
INSERT INTO journal_entries (
    journal_id, seq, kind, event_id, wake_id, is_input, recorded_at, payload, origin_id, origin_seq
)
WITH RECURSIVE left_part (journal_id, base_id, low, high) AS (
    SELECT journal_id, base_id, coalesce(base_seq, 0), last_seq FROM journals WHERE journal_id = :journal_id
    UNION ALL
    SELECT b.journal_id, b.base_id, coalesce(b.base_seq, 0), min(p.high, p.low)
    FROM left_part AS p CROSS JOIN journals AS b ON b.journal_id = p.base_id
),
right_part (journal_id, base_id, low, high) AS (
    SELECT journal_id, base_id, coalesce(base_seq, 0), :merged_seq FROM journals WHERE journal_id = :merged_id
    UNION ALL
    SELECT b.journal_id, b.base_id, coalesce(b.base_seq, 0), min(p.high, p.low)
    FROM right_part AS p CROSS JOIN journals AS b ON b.journal_id = p.base_id
),
shared (journal_id, low, high) AS MATERIALIZED (SELECT p.journal_id, p.low, p.high FROM left_part AS p WHERE p.low < p.high),
fresh AS MATERIALIZED (
    SELECT e.*, coalesce(e.origin_id, e.journal_id) AS from_id, coalesce(e.origin_seq, e.seq) AS from_seq
    FROM right_part AS r
    LEFT JOIN shared AS w ON w.journal_id = r.journal_id
    CROSS JOIN journal_entries AS e ON e.journal_id = r.journal_id
                                   AND e.seq > max(r.low, coalesce(w.high, 0)) AND e.seq <= r.high
)
SELECT
    :journal_id, :last_seq + row_number() OVER (ORDER BY n.seq), n.kind,
    iif(n.event_id IS NULL OR EXISTS (
        SELECT 1 FROM shared AS w
        CROSS JOIN journal_entries AS o ON o.journal_id = w.journal_id AND o.event_id = n.event_id
        WHERE o.seq > w.low AND o.seq <= w.high), NULL, n.event_id),
    n.wake_id, n.is_input AND n.seq > :merged_processed, n.recorded_at, n.payload, n.from_id, n.from_seq
FROM fresh AS n
WHERE NOT EXISTS (
        SELECT 1 FROM shared AS w WHERE w.journal_id = n.from_id AND n.from_seq > w.low AND n.from_seq <= w.high)
  AND NOT EXISTS (
        SELECT 1 FROM journal_entries AS o CROSS JOIN shared AS w ON w.journal_id = o.journal_id
        WHERE o.origin_id = n.from_id AND o.origin_seq = n.from_seq AND o.seq > w.low AND o.seq <= w.high);

-- add_entries: of a new journal; an import gives their times
INSERT INTO journal_entries (journal_id, seq, kind, payload, event_id, wake_id, is_input, recorded_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, coalesce(value ->> 7, :now)
FROM json_each(:rows);

-- copy_requests: the pending requests of one journal, to another one
INSERT INTO journal_requests (journal_id, request_id, kind, wake_id, seq, created_at, expires_at, payload)
SELECT :journal_id, request_id, kind, wake_id, seq, created_at, expires_at, payload
FROM journal_requests WHERE journal_id = :base_id ORDER BY id;

-- add_requests: of a new journal; they expire as the pending ones of its base
INSERT INTO journal_requests (journal_id, request_id, kind, payload, wake_id, seq, created_at, expires_at)
SELECT :journal_id, j.value ->> 0, j.value ->> 1, j.value ->> 2, j.value ->> 3, j.value ->> 4, j.value ->> 5,
    coalesce(r.expires_at, j.value ->> 6)
FROM json_each(:rows) AS j
LEFT JOIN journal_requests AS r ON r.journal_id = :base_id AND r.request_id = j.value ->> 0
ORDER BY j.key;

-- add_revisits: of a new journal
INSERT INTO journal_revisits (journal_id, key, due_at, priority, reason, note, wake_id)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6 FROM json_each(:rows);

-- finish: a new journal, with its own entries
UPDATE journals SET
    last_seq = :last_seq,
    oldest_at = min(oldest_at, iif(base_id IS NULL, coalesce(
        (SELECT min(e.recorded_at) FROM journal_entries AS e WHERE e.journal_id = :journal_id), oldest_at), oldest_at)),
    size = (SELECT coalesce(sum(length(CAST(e.payload AS BLOB))), 0) FROM journal_entries AS e WHERE e.journal_id = :journal_id)
WHERE journal_id = :journal_id;

-- copy_state: copy the record of one session to another session
INSERT INTO session_states (
    session_id, version, epoch, created_at, updated_at, schema_version, encoding, kind, name, parent, message_count, turn,
    labels, participants, state, generation
)
SELECT :session_id, 1, NULL, :now, :now, schema_version, encoding, kind, name, NULL, message_count, NULL,
       labels, participants, state, lower(hex(randomblob(8)))
FROM session_states WHERE session_id = :source;

-- copy_steps: with it, the steps of a wake that has not ended
INSERT INTO journal_steps (journal_id, wake_id, key, arguments, result)
SELECT :journal_id, wake_id, key, arguments, result FROM journal_steps WHERE journal_id = :base_id;

-- copy_labels: with it
INSERT INTO session_labels (key, value, session_id)
SELECT key, value, :session_id FROM session_labels WHERE session_id = :source;

-- copy_participants: with it
INSERT INTO session_participants (participant, session_id)
SELECT participant, :session_id FROM session_participants WHERE session_id = :source;

-- lineage: a journal and its ancestors, each once
WITH RECURSIVE up (journal_id) AS (
    SELECT journal_id FROM journals WHERE session_id = :session_id
    UNION
    SELECT p.parent_id FROM up AS u CROSS JOIN journal_parents AS p ON p.journal_id = u.journal_id
)
SELECT json_group_array(json_array(
    j.session_id, j.journal_id, j.kind, j.lineage, j.operator, json((
        SELECT json_group_array(p.parent_id) FROM (
            SELECT parent_id FROM journal_parents WHERE journal_id = j.journal_id ORDER BY position) AS p)),
    j.extras, j.base_id, j.base_seq, j.home, j.created_at, j.used,
    j.title, j.owner, j.labels, (SELECT b.session_id FROM journals AS b WHERE b.journal_id = j.base_id)))
FROM up AS u CROSS JOIN journals AS j ON j.journal_id = u.journal_id;

-- wakes: how wakes have ended
INSERT INTO journal_wakes (journal_id, seq, wake_id, base, read, processed, outcome, reason, attempt, error)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8,
       value ->> 9
FROM json_each(:rows);
