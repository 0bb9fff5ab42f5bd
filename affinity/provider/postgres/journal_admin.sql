-- list: one page of journals, newest first
SELECT p.session_id, p.journal_id, p.kind, p.parent, p.processed, p.first_seq, p.last_seq, p.size, p.closed,
    (SELECT count(*) FROM journal_requests r
     WHERE r.journal_id = p.journal_id AND (r.expires_at > p.now) IS NOT FALSE),
    (SELECT count(*) FROM journal_revisits r WHERE r.journal_id = p.journal_id), p.created_at, p.updated_at
FROM (
    SELECT j.*, (SELECT clock()) AS now FROM journals j
    WHERE j.session_id IS NOT NULL
      AND (%(kind)s::text IS NULL OR j.kind = %(kind)s)
      AND (%(prefix)s::text IS NULL OR starts_with(j.session_id, %(prefix)s))
      AND (%(parent)s::text IS NULL OR j.parent = %(parent)s)
      AND (%(closed)s::boolean IS NULL OR j.closed = %(closed)s)
      AND (NOT %(with_requests)s OR j.journal_id = ANY (ARRAY (
          SELECT r.journal_id FROM journal_requests r WHERE (r.expires_at > (SELECT clock())) IS NOT FALSE)))
      AND (%(after_time)s::timestamptz IS NULL OR (j.created_at, j.session_id) < (%(after_time)s, %(after_id)s))
    ORDER BY j.created_at DESC, j.session_id DESC LIMIT %(limit)s
) p
ORDER BY p.created_at DESC, p.session_id DESC

-- requests: the pending requests of sessions
SELECT q.n, json_agg(json_build_array(r.request_id, r.kind, r.payload, r.wake_id, r.created_at, r.expires_at, false)
    ORDER BY r.created_at, r.place)::text
FROM unnest(%(session)s) WITH ORDINALITY AS q (session_id, n)
JOIN journals j ON j.session_id = q.session_id JOIN journal_requests r ON r.journal_id = j.journal_id
WHERE (r.expires_at > (SELECT clock())) IS NOT FALSE
GROUP BY q.n

-- revisits: the pending revisits of sessions
SELECT q.n, json_agg(json_build_array(r.key, r.due_at, r.priority, r.reason, r.note, r.wake_id)
    ORDER BY r.due_at, r.key)::text
FROM unnest(%(session)s) WITH ORDINALITY AS q (session_id, n)
JOIN journals j ON j.session_id = q.session_id JOIN journal_revisits r ON r.journal_id = j.journal_id
GROUP BY q.n

-- delete: journals, but for what others continue
SELECT delete_journals_1(%(session)s)

-- prune: remove entries that are processed, oldest first; how many, and where the next step begins
SELECT removed, goes_on
FROM prune_journals_2(%(age)s, %(entries)s, %(size)s, %(limit)s, %(after)s, %(window)s, %(dry_run)s)
