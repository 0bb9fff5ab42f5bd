-- instances: the instances of some sessions, each with whether it has a parked item, the session of that, and its limits
SELECT json_group_array(json_array(
    i.instance_id, i.name, i.status, z.instance_id IS NOT NULL, z.session_id, z.limited IS TRUE))
FROM json_each(:session_ids) AS j
CROSS JOIN instances AS i ON i.instance_id = j.value
LEFT JOIN parked_items AS z ON z.instance_id = i.instance_id;

-- pending_requests: the pending ones among some requests
SELECT json_group_array(json_array(r.journal_id, r.request_id, r.kind, r.wake_id, r.seq))
FROM json_each(:rows) AS j
CROSS JOIN journal_requests AS r ON r.journal_id = j.value ->> 0 AND r.request_id = j.value ->> 1
WHERE r.expires_at IS NULL OR r.expires_at > :now;

-- resolve: remove requests
DELETE FROM journal_requests WHERE id IN (
    SELECT r.id FROM json_each(:rows) AS j
    CROSS JOIN journal_requests AS r ON r.journal_id = j.value ->> 0 AND r.request_id = j.value ->> 1
);

-- drop_requests: remove all requests of journals
DELETE FROM journal_requests WHERE journal_id IN (SELECT value FROM json_each(:rows));

-- drop_revisits: remove all revisits of journals
DELETE FROM journal_revisits WHERE journal_id IN (SELECT value FROM json_each(:rows));

-- requests: all requests of some journals, each with the place of its journal; times in microseconds
SELECT json_group_array(json_array(place, request_id, kind, payload, wake_id,
    CAST(round(created_at * 1e6) AS INTEGER), CAST(round(expires_at * 1e6) AS INTEGER), expires_at <= :now))
FROM (
    SELECT j.key AS place, r.*
    FROM json_each(:journal_ids) AS j CROSS JOIN journal_requests AS r ON r.journal_id = j.value
    ORDER BY r.id
);

-- revisits: the same of revisits, in the order in which they are due
SELECT json_group_array(json_array(place, key, CAST(round(due_at * 1e6) AS INTEGER), priority, reason, note, wake_id))
FROM (
    SELECT j.key AS place, r.*
    FROM json_each(:journal_ids) AS j CROSS JOIN journal_revisits AS r ON r.journal_id = j.value
    ORDER BY r.due_at, r.key
);

-- steps: the same of steps
SELECT json_group_array(json_array(j.key, s.wake_id, s.key, s.arguments, s.result))
FROM json_each(:journal_ids) AS j CROSS JOIN journal_steps AS s ON s.journal_id = j.value;

-- delegations: some open delegations of each journal
SELECT json_group_array(json_array(j.key, d.delegation_id, d.child))
FROM json_each(:journal_ids) AS j CROSS JOIN journal_delegations AS d ON d.journal_id = j.value
WHERE d.delegation_id IN (
    SELECT o.delegation_id FROM journal_delegations AS o WHERE o.journal_id = j.value LIMIT :limit);

-- unprocessed: the next inputs of some journals behind their watermarks, one more than the limit, each with the place of
-- its journal; the first of each journal with its payload, and the others as long as all before them have less than max_bytes
WITH wanted (place, journal_id, processed) AS MATERIALIZED (
    SELECT key, value ->> 0, value ->> 1 FROM json_each(:rows)
),
sized AS MATERIALIZED (
    SELECT w.place, w.journal_id, e.seq, length(CAST(e.payload AS BLOB)) AS size,
           row_number() OVER (PARTITION BY w.place ORDER BY e.seq) AS nth
    FROM wanted AS w CROSS JOIN journal_entries AS e INDEXED BY journal_entries_inputs
        ON e.journal_id = w.journal_id AND e.is_input AND e.seq > w.processed
    WHERE e.seq <= coalesce((
        SELECT i.seq FROM journal_entries AS i INDEXED BY journal_entries_inputs
        WHERE i.journal_id = w.journal_id AND i.is_input AND i.seq > w.processed
        ORDER BY i.seq LIMIT 1 OFFSET :limit), 9223372036854775807)
),
summed AS (
    SELECT *, sum(iif(nth <= :limit, size, 0)) OVER (ORDER BY place, seq ROWS UNBOUNDED PRECEDING) AS total FROM sized
)
SELECT json_group_array(json_array(
    summed.place, summed.seq, summed.total, e.kind, e.payload, e.event_id, e.wake_id, e.is_input,
    CAST(round(e.recorded_at * 1e6) AS INTEGER), e.origin_id IS NOT NULL))
FROM summed
LEFT JOIN journal_entries AS e ON nth <= :limit AND (nth = 1 OR total - size < :max_bytes)
    AND e.journal_id = summed.journal_id AND e.seq = summed.seq;

-- by_number: numbers of entries of a journal in a range
SELECT json_group_array(seq) FROM (
    SELECT seq FROM journal_entries
    WHERE journal_id = :journal_id AND seq > :after AND seq < :before
    ORDER BY seq
    LIMIT :limit
);

-- by_kind: entries of one kind
SELECT json_group_array(seq) FROM (
    SELECT seq FROM journal_entries INDEXED BY journal_entries_by_kind
    WHERE journal_id = :journal_id AND kind = :kind AND seq > :after AND seq < :before
    ORDER BY seq
    LIMIT :limit
);

-- by_wake: entries of one wake, and of some kinds
SELECT json_group_array(seq) FROM (
    SELECT seq FROM journal_entries INDEXED BY journal_entries_by_wake
    WHERE journal_id = :journal_id AND wake_id = :wake_id AND seq > :after AND seq < :before
      AND (:any_kind OR kind IN (SELECT value FROM json_each(:kinds))) AND (NOT :pending OR is_input)
    ORDER BY seq
    LIMIT :limit
);

-- by_event: the entry with an event id, if it is of some kinds
SELECT json_group_array(seq) FROM (
    SELECT seq FROM journal_entries INDEXED BY journal_entries_by_event
    WHERE journal_id = :journal_id AND event_id = :event_id AND seq > :after AND seq < :before
      AND (:wake_id IS NULL OR wake_id = :wake_id)
      AND (:any_kind OR kind IN (SELECT value FROM json_each(:kinds))) AND (NOT :pending OR is_input)
    ORDER BY seq
    LIMIT :limit
);

-- inputs: entries that are inputs, and of some kinds
SELECT json_group_array(seq) FROM (
    SELECT seq FROM journal_entries INDEXED BY journal_entries_inputs
    WHERE journal_id = :journal_id AND is_input AND seq > :after AND seq < :before
      AND (:any_kind OR kind IN (SELECT value FROM json_each(:kinds)))
    ORDER BY seq
    LIMIT :limit
);

-- wakes: ended wakes of a journal in a range
SELECT json_group_array(json_array(seq, wake_id, base, read, processed, outcome, reason, attempt, error)) FROM (
    SELECT * FROM journal_wakes
    WHERE journal_id = :journal_id AND seq > :after AND seq <= :upto
    ORDER BY processed, seq
    LIMIT :limit
);

-- reply: the first one behind a watermark and a number, if it was given an input and is in the range
SELECT seq, wake_id, base, read, processed, outcome, reason, attempt, error FROM (
    SELECT * FROM journal_wakes WHERE journal_id = :journal_id AND (processed, seq) >= (:mark, :from)
    ORDER BY processed, seq LIMIT 1
) WHERE base < :input AND max(read, processed) >= :input AND seq > :after AND seq <= :upto;

-- is_input: whether an entry is an input
SELECT is_input FROM journal_entries WHERE journal_id = ? AND seq = ?;

-- entries: entries by journal id and number, in order, as many as fit; each with the bytes of all up to it
WITH sized AS MATERIALIZED (
    SELECT j.key AS place, e.journal_id, e.seq, length(CAST(e.payload AS BLOB)) AS size
    FROM json_each(:rows) AS j
    CROSS JOIN journal_entries AS e ON e.journal_id = j.value ->> 0 AND e.seq = j.value ->> 1
), summed AS (
    SELECT *, sum(size) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS total FROM sized
)
SELECT json_group_array(json_array(
    e.seq, summed.total, e.kind, e.payload, e.event_id, e.wake_id, e.is_input,
    CAST(round(e.recorded_at * 1e6) AS INTEGER), e.origin_id IS NOT NULL))
FROM summed CROSS JOIN journal_entries AS e ON e.journal_id = summed.journal_id AND e.seq = summed.seq
WHERE summed.total - summed.size < :max_bytes;
