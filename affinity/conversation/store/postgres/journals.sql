-- append: inputs, with the journals and instances that they start
SELECT places, outcomes, seqs, journal_ids, created, unparked, holders

-- appended: the effects of append, for `with_shares`
SELECT p.place, 'appended' FROM result CROSS JOIN unnest(places, outcomes) AS p (place, outcome) WHERE p.outcome IS NULL

-- append_input: one input of a journal that is there
SELECT outcome, seq, journal, false, unparked, holder
FROM append_input(%(session)s, %(kind)s, %(entry_kind)s, %(entry)s, %(event)s, %(message)s, %(unread_limit)s)

-- input_appended: the effect of append_input, for `with_shares`
SELECT 1, 'appended' FROM result WHERE outcome IS NULL

-- client_append_input: the same, for clients
SELECT outcome, seq, journal, false, unparked, holder
FROM client_append_input(%(session)s, %(kind)s, %(entry_kind)s, %(entry)s, %(event)s, %(message)s, %(unread_limit)s)

-- pending: the work for the next wake of each session; a row for each input, or one row without inputs
SELECT p.n, p.journal_id, p.kind, p.processed, p.last_seq, p.closed, p.parent, p.found,
    CASE WHEN p.place = 1 THEN (
        SELECT json_agg(json_build_array(r.request_id, r.kind, r.payload, r.wake_id, r.created_at, r.expires_at,
            (r.expires_at <= p.now) IS TRUE, extract(epoch FROM r.expires_at - p.now)::float8) ORDER BY r.created_at, r.place)::text
        FROM journal_requests r WHERE r.journal_id = p.journal_id) END,
    CASE WHEN p.place = 1 THEN (
        SELECT json_agg(json_build_array(r.key, r.due_at, r.priority, r.reason, r.note, r.wake_id,
            extract(epoch FROM r.due_at - p.now)::float8) ORDER BY r.due_at, r.key)::text
        FROM journal_revisits r WHERE r.journal_id = p.journal_id) END,
    p.home, CASE WHEN p.home IS NOT NULL THEN greatest(
        (SELECT s.epoch FROM sessions s WHERE s.session_id = p.session_id),
        (SELECT r.epoch FROM session_states r WHERE r.session_id = p.session_id)) END,
    p.processed > 0 OR (SELECT true FROM session_states r WHERE r.session_id = p.session_id) IS NOT NULL,
    CASE WHEN p.place = 1 THEN (
        SELECT json_agg(json_build_array(s.wake_id, s.key, s.arguments, s.result))::text
        FROM journal_steps s WHERE s.journal_id = p.journal_id) END,
    CASE WHEN p.place = 1 THEN (
        SELECT json_agg(json_build_array(d.delegation_id, d.child))::text
        FROM (SELECT * FROM journal_delegations o WHERE o.journal_id = p.journal_id LIMIT %(delegations)s) d) END,
    p.seq, p.entry_kind, p.payload, p.event_id, p.wake_id, p.is_input, p.recorded_at, p.is_copied
FROM (
    SELECT q.n, q.session_id, j.home, j.journal_id, j.kind, j.processed, j.last_seq, j.closed, j.parent, i.seq, i.kind AS entry_kind,
        i.payload, i.event_id, i.wake_id, i.is_input, i.recorded_at, i.origin_id IS NOT NULL AS is_copied, c.now,
        row_number() OVER (PARTITION BY q.n ORDER BY i.seq) AS place, count(i.seq) OVER (PARTITION BY q.n) AS found,
        sum(octet_length(i.payload)) OVER (ORDER BY q.n, i.seq) - octet_length(i.payload) AS before
    FROM unnest(%(session)s) WITH ORDINALITY AS q (session_id, n)
    -- OFFSET 0: by the key, though statistics may say that there are few journals; so in the other reads.
    CROSS JOIN LATERAL (SELECT o.* FROM journals o WHERE o.session_id = q.session_id OFFSET 0) j
    CROSS JOIN (SELECT clock() AS now) c
    LEFT JOIN LATERAL (
        (SELECT e.* FROM journal_entries e
         WHERE j.processed >= coalesce(j.base_seq, 0) AND e.journal_id = j.journal_id AND e.is_input AND e.seq > j.processed
         ORDER BY e.seq LIMIT %(limit)s + 1)
        UNION ALL
        SELECT e.*
        FROM find_entries(
            j.journal_id, j.processed, 9223372036854775807, '{}', NULL, NULL, true, false, %(limit)s + 1) f
        JOIN journal_entries e ON e.journal_id = f.owner AND e.seq = f.seq
        WHERE j.processed < j.base_seq
    ) i ON true
) p
WHERE p.place = 1 OR p.place <= %(limit)s AND p.before < %(max_bytes)s
ORDER BY p.n, p.seq

-- read_replies: the wakes that have processed inputs, with their entries, or were given them; a row for each entry, or one
SELECT p.n, p.has_next OR p.entry_seq IS NOT NULL AND NOT p.fits AS has_more,
    CASE WHEN NOT p.is_first THEN NULL WHEN p.input <= p.base_seq THEN is_inherited_input(p.journal_id, p.input)
         ELSE (SELECT e.is_input FROM journal_entries e WHERE e.journal_id = p.journal_id AND e.seq = p.input) END,
    p.journal_id, p.kind, p.processed, p.first_seq, p.last_seq, p.closed, p.parent, p.parent_journal,
    CASE WHEN p.is_first THEN (SELECT i.status FROM instances i WHERE i.instance_id = p.session_id) END,
    p.seq, p.wake_id, p.base, p.read, p.wake_processed, p.outcome, p.reason, p.attempt, p.error,
    CASE WHEN p.fits THEN p.entry_seq END, p.entry_kind, CASE WHEN p.fits THEN p.payload END, p.event_id, p.wake_id,
    false, p.recorded_at, p.is_copied
FROM (
    SELECT q.n, q.session_id, q.input, j.journal_id, j.kind, j.processed, j.first_seq, j.last_seq, j.closed, j.parent,
        j.parent_journal, j.base_seq,
        w.seq, w.wake_id, w.base, w.read, w.processed AS wake_processed, w.outcome, w.reason, w.attempt, w.error,
        f.seq AS entry_seq, f.kind AS entry_kind, f.payload, f.event_id, f.recorded_at, f.origin_id IS NOT NULL AS is_copied,
        lag(q.n) OVER in_order IS DISTINCT FROM q.n AS is_first,
        lead(q.n) OVER in_order IS NOT DISTINCT FROM q.n AS has_next,
        coalesce(sum(octet_length(f.payload)) OVER in_order, 0) < %(max_bytes)s AS fits
    FROM unnest(%(session)s, %(input)s, %(after)s, %(limit)s) WITH ORDINALITY AS q (session_id, input, after, lim, n)
    CROSS JOIN LATERAL (SELECT o.* FROM journals o WHERE o.session_id = q.session_id OFFSET 0) j
    LEFT JOIN LATERAL (
        (SELECT r.* FROM journal_wakes r
         WHERE r.journal_id = j.journal_id AND (r.processed, r.seq) >= (
             least(q.input, j.processed), CASE WHEN q.input > j.processed THEN j.last_seq ELSE 0 END)
         ORDER BY r.processed, r.seq LIMIT 1)
        UNION ALL
        SELECT r.* FROM find_inherited_reply(j.journal_id, q.input) r WHERE q.input <= j.base_seq
    ) w ON w.base < q.input AND greatest(w.read, w.processed) >= q.input
    LEFT JOIN LATERAL (
        SELECT e.* FROM journal_entries e
        WHERE w.processed >= q.input AND e.journal_id = w.journal_id AND e.wake_id = w.wake_id
          AND e.seq > greatest(q.after, w.base, j.first_seq - 1) AND e.seq <= w.seq
        ORDER BY e.seq LIMIT q.lim + 1
    ) f ON true
    WINDOW in_order AS (ORDER BY q.n, f.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) p
WHERE p.is_first OR p.fits
ORDER BY p.n, p.entry_seq

-- wakes: ended wakes of a journal, and of the journals that it continues
SELECT w.seq, w.wake_id, w.base, w.read, w.processed, w.outcome, w.reason, w.attempt, w.error
FROM journals j CROSS JOIN LATERAL journal_segments(j.journal_id) s CROSS JOIN LATERAL (
    SELECT w.* FROM journal_wakes w
    WHERE w.journal_id = s.journal_id AND w.seq > greatest(s.low, j.first_seq - 1, %(after)s) AND w.seq <= s.high
    ORDER BY w.processed, w.seq LIMIT %(limit)s) w
WHERE j.session_id = %(session)s
ORDER BY w.processed, w.seq LIMIT %(limit)s

-- read: a page of each journal, and the stream that is under way; a row for each entry, or one
SELECT p.n, p.found, t.wake_id, t.attempt, t.number, parts.numbers, parts.payloads,
    p.journal_id, p.kind, p.processed, p.first_seq, p.last_seq, p.closed, p.parent, p.parent_journal,
    CASE WHEN p.place = 1 THEN (SELECT i.status FROM instances i WHERE i.instance_id = p.session_id) END,
    CASE WHEN p.fits THEN p.seq END, p.entry_kind, CASE WHEN p.fits THEN p.payload END, p.event_id, p.wake_id,
    p.is_input, p.recorded_at, p.is_copied
FROM (
    SELECT q.n, q.session_id, q.lim, j.journal_id, j.kind, j.processed, j.first_seq, j.last_seq, j.closed, j.parent,
        j.parent_journal, j.ended_wake, j.ended_attempt, q.stream_wake, q.stream_attempt, q.stream_number,
        f.seq, f.kind AS entry_kind, f.payload, f.event_id, f.wake_id, f.is_input, f.recorded_at,
        f.origin_id IS NOT NULL AS is_copied,
        row_number() OVER of_query AS place, count(f.seq) OVER (PARTITION BY q.n) AS found,
        row_number() OVER of_query <= q.lim
            AND coalesce(sum(octet_length(f.payload)) OVER (
                ORDER BY q.n, f.place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) < %(max_bytes)s AS fits
    FROM unnest(%(session)s, %(after)s, %(before)s, %(kinds)s, %(wake)s, %(event)s, %(pending)s, %(newest)s, %(limit)s,
                %(stream_wake)s, %(stream_attempt)s, %(stream_number)s)
         WITH ORDINALITY AS q (session_id, after, before, kinds, wake_id, event_id, pending, newest, lim, stream_wake,
                               stream_attempt, stream_number, n)
    CROSS JOIN LATERAL (SELECT o.* FROM journals o WHERE o.session_id = q.session_id OFFSET 0) j
    CROSS JOIN LATERAL (
        SELECT greatest(q.after, j.first_seq - 1, CASE WHEN q.pending THEN j.processed END) AS after,
            -- By number, forward, among its own entries: the read of the feeds that follow a journal.
            q.wake_id IS NULL AND q.event_id IS NULL AND q.kinds = '' AND NOT q.pending AND NOT q.newest AS is_plain
    ) b
    LEFT JOIN LATERAL (
        (SELECT e.*, e.seq AS place FROM journal_entries e
         WHERE b.is_plain AND b.after >= coalesce(j.base_seq, 0)
           AND e.journal_id = j.journal_id AND e.seq > b.after AND e.seq < q.before
         ORDER BY e.seq LIMIT q.lim + 1)
        UNION ALL
        SELECT e.*, CASE WHEN q.newest THEN -e.seq ELSE e.seq END
        FROM find_entries(
            j.journal_id, b.after, q.before, string_to_array(q.kinds, E'\n'), q.wake_id, q.event_id, q.pending,
            q.newest, q.lim + 1) o
        JOIN journal_entries e ON e.journal_id = o.owner AND e.seq = o.seq
        WHERE NOT (b.is_plain AND b.after >= coalesce(j.base_seq, 0))
    ) f ON true
    WINDOW of_query AS (PARTITION BY q.n ORDER BY f.place)
) p
LEFT JOIN LATERAL (
    SELECT s.wake_id, s.attempt, s.number FROM journal_streams s
    WHERE p.place = 1 AND p.stream_wake IS NOT NULL AND s.journal_id = p.journal_id
      -- Not one that has ended, of a worker that was late.
      AND CASE WHEN p.ended_wake = s.wake_id THEN s.attempt > p.ended_attempt
               ELSE NOT EXISTS (
                   SELECT FROM journal_entries e WHERE e.journal_id = s.journal_id AND e.wake_id = s.wake_id) END
    ORDER BY s.wake_id DESC, s.attempt DESC, s.number DESC LIMIT 1
) t ON true
LEFT JOIN LATERAL (
    SELECT array_agg(o.number) AS numbers, array_agg(o.payload) AS payloads
    FROM (
        SELECT s.number, s.payload FROM journal_streams s
        WHERE s.journal_id = p.journal_id AND s.wake_id = t.wake_id AND s.attempt = t.attempt
          AND s.number > CASE WHEN (p.stream_wake, p.stream_attempt) = (t.wake_id, t.attempt) THEN p.stream_number
                              ELSE 0 END
        ORDER BY s.number) o
) parts ON t.wake_id IS NOT NULL
WHERE p.place = 1 OR p.fits
ORDER BY p.n, p.place
