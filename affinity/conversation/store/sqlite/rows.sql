-- heads: the journals of some sessions, and, if wanted, the status of their instances
SELECT json_group_array(json_array(
    j.journal_id, j.session_id, j.kind, j.parent, j.processed, j.first_seq, j.last_seq, j.closed, j.base_id, j.base_seq,
    j.dropped, j.home, j.parent_journal, iif(j.home IS NULL, 0, max(
        coalesce((SELECT l.epoch FROM sessions AS l WHERE l.session_id = j.session_id), 0),
        coalesce((SELECT r.epoch FROM session_states AS r WHERE r.session_id = j.session_id), 0))),
    iif(:with_status, (SELECT i.status FROM instances AS i WHERE i.instance_id = j.session_id), NULL)))
FROM json_each(:session_ids) AS a CROSS JOIN journals AS j ON j.session_id = a.value;

-- numbers: entries by their event ids, in journals and in the journals that these continue
WITH RECURSIVE place (journal_id, event_id, first_seq, at_id, upto) AS (
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 0, 9223372036854775807 FROM json_each(:rows)
    UNION ALL
    SELECT p.journal_id, p.event_id, p.first_seq, j.base_id, min(p.upto, j.base_seq)
    FROM place AS p CROSS JOIN journals AS j ON j.journal_id = p.at_id
    WHERE j.base_id IS NOT NULL
)
SELECT json_group_array(json_array(p.journal_id, p.event_id, e.seq))
FROM place AS p CROSS JOIN journal_entries AS e ON e.journal_id = p.at_id AND e.event_id = p.event_id
WHERE e.seq >= p.first_seq AND e.seq <= p.upto;

-- segments: the journals whose entries a journal has, the nearest first, and which of their own entries these are
WITH RECURSIVE place (journal_id, base_id, base_seq, upto) AS (
    SELECT journal_id, base_id, base_seq, last_seq FROM journals WHERE journal_id = :journal_id
    UNION ALL
    SELECT j.journal_id, j.base_id, j.base_seq, min(p.upto, p.base_seq)
    FROM place AS p CROSS JOIN journals AS j ON j.journal_id = p.base_id
)
SELECT json_group_array(json_array(p.journal_id, coalesce(p.base_seq, 0), p.upto)) FROM place AS p
WHERE p.upto > coalesce(p.base_seq, 0);

-- create: new journals
INSERT INTO journals (
    journal_id, session_id, kind, parent, parent_journal, title, owner, labels, oldest_at, created_at, updated_at
)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3,
       (SELECT p.journal_id FROM journals AS p WHERE p.session_id = value ->> 3), value ->> 4, value ->> 5, value -> 6, :now,
       :now, :now
FROM json_each(:rows);

-- append: entries, whose numbers are the next of their journals
INSERT INTO journal_entries (journal_id, seq, kind, event_id, wake_id, is_input, recorded_at, payload, request_seq)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, :now, value ->> 6, value ->> 7
FROM json_each(:rows);

-- advance: journals behind the entries that they have now
UPDATE journals SET
    last_seq = j.value ->> 1,
    size = size + (j.value ->> 2),
    processed = j.value ->> 3,
    closed = j.value ->> 4,
    dropped = j.value ->> 5,
    ended_wake = coalesce(j.value ->> 6, ended_wake),
    ended_attempt = coalesce(j.value ->> 7, ended_attempt),
    updated_at = :now
FROM json_each(:rows) AS j
WHERE journals.journal_id = j.value ->> 0;
