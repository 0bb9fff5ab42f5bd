-- latest: the last part that a journal has
SELECT wake_id, attempt, number FROM journal_streams
WHERE journal_id = :journal_id ORDER BY wake_id DESC, attempt DESC, number DESC LIMIT 1;

-- read: parts of one attempt
SELECT json_group_array(json_array(number, payload)) FROM (
    SELECT number, payload FROM journal_streams
    WHERE journal_id = :journal_id AND wake_id = :wake_id AND attempt = :attempt AND number > :number
    ORDER BY number
);

-- journals: some journals, if they exist: the wake and attempt that has ended, and the attempt that has parts
SELECT json_group_array(json_array(
    j.session_id, j.journal_id, j.ended_wake, j.ended_attempt,
    (SELECT s.wake_id FROM journal_streams AS s WHERE s.journal_id = j.journal_id
     ORDER BY s.wake_id DESC, s.attempt DESC LIMIT 1),
    (SELECT s.attempt FROM journal_streams AS s WHERE s.journal_id = j.journal_id
     ORDER BY s.wake_id DESC, s.attempt DESC LIMIT 1)))
FROM json_each(:rows) AS r
CROSS JOIN journals AS j ON j.session_id = r.value ->> 0 AND j.journal_id = r.value ->> 1;

-- committed: which of some wakes have entries
SELECT json_group_array(json_array(r.value ->> 0, r.value ->> 1)) FROM json_each(:rows) AS r
WHERE EXISTS (
    SELECT 1 FROM journal_entries AS e INDEXED BY journal_entries_by_wake
    WHERE e.journal_id = r.value ->> 0 AND e.wake_id = r.value ->> 1
);

-- add: parts, unless their numbers are there
INSERT INTO journal_streams (journal_id, wake_id, attempt, number, payload)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(:rows)
WHERE true
ON CONFLICT DO NOTHING;

-- clear: remove the parts of journals
DELETE FROM journal_streams WHERE journal_id IN (SELECT value FROM json_each(:rows));

-- retract: remove the parts of an attempt of a wake, and of lower ones
DELETE FROM journal_streams WHERE journal_id = :journal_id AND wake_id = :wake_id AND attempt <= :attempt;

-- end_attempt: ignore later ones
UPDATE journals SET ended_wake = :wake_id, ended_attempt = :attempt
WHERE session_id = :session_id AND journal_id = :journal_id
  AND NOT (ended_wake IS :wake_id AND ended_attempt >= :attempt)
  AND (ended_wake IS :wake_id OR NOT EXISTS (
      SELECT 1 FROM journal_entries AS e INDEXED BY journal_entries_by_wake
      WHERE e.journal_id = :journal_id AND e.wake_id = :wake_id));
