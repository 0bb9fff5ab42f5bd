-- client_create: journals from others, one after the other, for clients
SELECT b.n, r.outcome, r.created_id, r.created_seq
FROM unnest(%(creation)s) WITH ORDINALITY AS b (creation, n) CROSS JOIN LATERAL client_create_journal(b.creation::jsonb) AS r
ORDER BY b.n

-- create: the same, with states of sessions and with what wakes have written
SELECT b.n, r.outcome, r.created_id, r.created_seq
FROM unnest(%(creation)s) WITH ORDINALITY AS b (creation, n) CROSS JOIN LATERAL create_journal(b.creation::jsonb) AS r
ORDER BY b.n

-- created: the effects of create, for `with_shares`
SELECT n, outcome FROM result WHERE outcome = 'created'

-- lineage: a journal and its ancestors, each once
WITH RECURSIVE up (journal_id) AS (
    SELECT j.journal_id FROM journals j WHERE j.session_id = %(session)s
    UNION
    SELECT p.parent_id FROM up u JOIN journal_parents p ON p.journal_id = u.journal_id
)
SELECT j.session_id, j.journal_id, j.kind, j.lineage, j.operator, ARRAY (
        SELECT p.parent_id FROM journal_parents p WHERE p.journal_id = j.journal_id ORDER BY p.position),
    j.extras, j.base_id, j.base_seq, j.home, j.created_at, j.used::text,
    j.title, j.owner, j.labels::text, (SELECT b.session_id FROM journals b WHERE b.journal_id = j.base_id)
FROM up u JOIN journals j ON j.journal_id = u.journal_id
