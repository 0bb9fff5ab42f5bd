-- list: journals with a status, newest first, and the last one that was looked at
WITH page AS MATERIALIZED (
    SELECT j.*, (SELECT clock()) AS now FROM journals j
    WHERE j.session_id IS NOT NULL
      AND (%(session_id)s::text IS NULL OR j.session_id = %(session_id)s)
      AND (%(kind)s::text IS NULL OR j.kind = %(kind)s)
      AND (%(prefix)s::text IS NULL OR starts_with(j.session_id, %(prefix)s))
      AND (%(parent)s::text IS NULL OR j.parent = %(parent)s)
      AND (%(parent_journal)s::bigint IS NULL OR j.parent_journal = %(parent_journal)s)
      AND (%(closed)s::boolean IS NULL OR j.closed = %(closed)s)
      AND (%(owner)s::text IS NULL OR j.owner = %(owner)s)
      AND (%(labels)s::jsonb IS NULL OR j.labels <> '{}' AND j.labels @> %(labels)s::jsonb)
      AND (%(made_from)s::bigint IS NULL OR j.journal_id = ANY (ARRAY (
          SELECT m.journal_id FROM journal_parents m WHERE m.parent_id = %(made_from)s)))
      AND (NOT %(with_requests)s OR j.journal_id = ANY (ARRAY (
          SELECT r.journal_id FROM journal_requests r WHERE (r.expires_at > (SELECT clock())) IS NOT FALSE)))
      AND (%(after_time)s::timestamptz IS NULL OR (j.created_at, j.session_id) < (%(after_time)s, %(after_id)s))
    ORDER BY j.created_at DESC, j.session_id DESC LIMIT %(window)s
), counted AS MATERIALIZED (
    SELECT p.*, i.status AS instance, w.outcome AS wake, w.seq AS wake_seq,
        row_number() OVER (ORDER BY p.created_at DESC, p.session_id DESC) AS place,
        CASE WHEN p.processed < p.base_seq
             THEN (SELECT f.seq FROM find_entries(
                 p.journal_id, p.processed, p.last_seq + 1, '{}', NULL, NULL, true, false, 1) f)
             ELSE (SELECT e.seq FROM journal_entries e
                   WHERE e.journal_id = p.journal_id AND e.is_input AND e.seq > p.processed ORDER BY e.seq LIMIT 1)
        END AS pending_from,
        (SELECT count(*) FROM journal_requests r
         WHERE r.journal_id = p.journal_id AND (r.expires_at > p.now) IS NOT FALSE) AS requests
    FROM page p
    -- OFFSET 0: by the key, whatever statistics say of the number of instances.
    LEFT JOIN LATERAL (
        SELECT n.status FROM instances n WHERE n.instance_id = p.session_id OFFSET 0) i ON true
    LEFT JOIN LATERAL (
        SELECT o.outcome, o.seq FROM journal_wakes o WHERE o.journal_id = p.journal_id
        ORDER BY o.processed DESC, o.seq DESC LIMIT 1) w ON true
), judged AS MATERIALIZED (
    SELECT p.*, CASE
        WHEN p.closed OR p.instance IN ('completed', 'failed', 'cancelled') THEN 'terminated'
        WHEN p.instance IS NULL THEN 'idle'
        WHEN p.instance = 'suspended' THEN 'failed'
        -- No EXISTS, for which all of the queue may be read.
        WHEN (SELECT true FROM worker_queue q WHERE q.instance_id = p.session_id LIMIT 1) THEN 'running'
        WHEN p.wake = 'failed' AND p.wake_seq = p.last_seq THEN 'failed'
        WHEN p.wake = 'retried' THEN 'rescheduling'
        WHEN p.pending_from IS NOT NULL THEN 'running'
        WHEN p.requests > 0 THEN 'requires_action'
        WHEN (SELECT true FROM journal_delegations d WHERE d.journal_id = p.journal_id LIMIT 1)
          OR (SELECT true FROM journal_revisits r WHERE r.journal_id = p.journal_id LIMIT 1) THEN 'waiting'
        ELSE 'idle' END AS status
    FROM counted p
)
SELECT p.place, p.session_id, p.journal_id, p.kind, p.parent, p.processed, p.first_seq, p.last_seq, p.size, p.closed,
    p.status, p.pending_from, p.requests,
    (SELECT count(*) FROM journal_revisits r WHERE r.journal_id = p.journal_id), p.created_at, p.updated_at,
    p.title, p.owner, p.labels::text
FROM judged p
WHERE p.place = %(window)s
   OR (%(status)s::text IS NULL OR p.status = %(status)s)
      AND (%(since)s::timestamptz IS NULL OR p.updated_at >= %(since)s)
      AND (%(before)s::timestamptz IS NULL OR p.updated_at < %(before)s)
ORDER BY p.place LIMIT %(limit)s

-- describe: change title, owner and labels of a journal
SELECT describe_journal(%(session)s, %(kind)s, %(changes)s::jsonb)

-- described: the effect of describe, for `with_shares`
SELECT 1, 'done' FROM result WHERE describe_journal

-- delete: journals, but for what others continue
SELECT delete_journals(%(session)s)

-- deleted: the effects of delete, for `with_shares`
SELECT array_position(%(session)s, d.session_id), 'done' FROM result CROSS JOIN unnest(delete_journals) AS d (session_id)

-- prune: remove entries that are processed, oldest first; how many, and where the next step begins
SELECT removed, goes_on
FROM prune_journals(%(age)s, %(entries)s, %(size)s, %(limit)s, %(after)s, %(milliseconds)s, %(dry_run)s)

-- prune_all: also of journals of which nothing could be removed lately
SELECT removed, goes_on
FROM prune_all_journals(%(age)s, %(entries)s, %(size)s, %(limit)s, %(after)s, %(milliseconds)s, %(dry_run)s, true)

-- pruned: the effect of prune, for `with_shares`
SELECT 1, 'removed ' || removed FROM result WHERE removed > 0
