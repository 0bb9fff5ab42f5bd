-- list: pending requests, oldest first, with their journals, and the last one that was looked at
-- Parts: `all` of all journals, `some` of the journals of some sessions, or `below` of a journal and its descendants.
WITH page AS MATERIALIZED (
    SELECT r.*
-- [all
    FROM journal_requests r
-- all]
-- [some
    FROM unnest(%(sessions)s) AS s (session_id)
    CROSS JOIN LATERAL (SELECT o.journal_id FROM journals o WHERE o.session_id = s.session_id OFFSET 0) j
    CROSS JOIN LATERAL (SELECT q.* FROM journal_requests q WHERE q.journal_id = j.journal_id OFFSET 0) r
-- some]
-- [below
    FROM (
        WITH RECURSIVE tree (journal_id, session_id) AS (
            SELECT o.journal_id, o.session_id FROM journals o WHERE o.session_id = %(below)s
            UNION ALL
            SELECT c.journal_id, c.session_id FROM tree t CROSS JOIN LATERAL (
                SELECT o.* FROM journals o WHERE o.parent = t.session_id AND o.session_id IS NOT NULL OFFSET 0) c
            WHERE c.parent_journal = t.journal_id
        )
        SELECT t.journal_id FROM tree t LIMIT %(most)s) j
    CROSS JOIN LATERAL (SELECT q.* FROM journal_requests q WHERE q.journal_id = j.journal_id OFFSET 0) r
-- below]
    WHERE (r.created_at, r.journal_id, r.place, r.request_id) >
          (%(after_time)s::timestamptz, %(after_journal)s, %(after_place)s, %(after_id)s)
    ORDER BY r.created_at, r.journal_id, r.place, r.request_id LIMIT %(window)s
), judged AS MATERIALIZED (
    SELECT p.*, row_number() OVER (ORDER BY p.created_at, p.journal_id, p.place, p.request_id) AS n, j.session_id, j.kind AS journal_kind, j.title, j.owner, j.labels,
        (NOT j.closed AND (p.expires_at > (SELECT clock())) IS NOT FALSE
         AND (%(kinds)s = '{}'::text[] OR p.kind = ANY (%(kinds)s))
         AND (%(owner)s::text IS NULL OR j.owner = %(owner)s)
         AND (%(labels)s::jsonb IS NULL OR j.labels @> %(labels)s::jsonb)
         AND (%(any_session)s OR j.session_id = ANY (%(sessions)s))
         AND (%(prefix)s::text IS NULL OR starts_with(j.session_id, %(prefix)s))
         -- An instance that is gone is created again by the answer.
         AND coalesce((SELECT i.status FROM instances i WHERE i.instance_id = j.session_id), '')
             NOT IN ('completed', 'failed', 'cancelled')) IS TRUE AS fits
    FROM page p
    -- OFFSET 0: by the key, whatever statistics say of the number of journals.
    CROSS JOIN LATERAL (SELECT o.* FROM journals o WHERE o.journal_id = p.journal_id OFFSET 0) j
)
SELECT w.n, w.fits, w.session_id, w.journal_id, w.journal_kind, w.title, w.owner, w.request_id, w.kind, w.payload, w.wake_id,
    w.created_at, w.expires_at, w.place, w.labels::text
FROM judged w WHERE w.fits OR w.n = %(window)s
ORDER BY w.n LIMIT %(limit)s
