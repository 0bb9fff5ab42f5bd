-- list: journals with a status, newest first, and the last one that was looked at; one condition becomes the condition of an
-- index
WITH page AS MATERIALIZED (
    SELECT j.* FROM journals AS j
    WHERE j.session_id IS NOT NULL AND (j.created_at, j.session_id) < (:before, :before_id)
      AND (:session_id IS NULL OR j.session_id = :session_id)
      AND (:kind IS NULL OR j.kind = :kind) AND (:parent IS NULL OR j.parent = :parent)
      AND (:parent_journal IS NULL OR j.parent_journal = :parent_journal)
      AND (:prefix IS NULL OR substr(j.session_id, 1, length(:prefix)) = :prefix)
      AND (:closed IS NULL OR j.closed = :closed) AND (:owner IS NULL OR j.owner = :owner)
      AND (:made_from IS NULL OR EXISTS (
          SELECT 1 FROM journal_parents AS m WHERE m.parent_id = :made_from AND m.journal_id = j.journal_id))
      AND NOT EXISTS (
          SELECT 1 FROM json_each(:labels) AS w WHERE NOT EXISTS (
              SELECT 1 FROM journal_labels AS l
              WHERE l.key = w.key AND l.value = w.value AND l.journal_id = j.journal_id))
    ORDER BY j.created_at DESC, j.session_id DESC
    LIMIT :window
),
counted AS MATERIALIZED (
    SELECT p.*, i.status AS instance, w.outcome AS wake, w.seq AS wake_seq,
           row_number() OVER (ORDER BY p.created_at DESC, p.session_id DESC) AS place,
           (SELECT count(*) FROM journal_requests AS q
            WHERE q.journal_id = p.journal_id AND (q.expires_at IS NULL OR q.expires_at > :now)) AS requests,
           (WITH RECURSIVE part (journal_id, base_id, base_seq, upto) AS (
                SELECT p.journal_id, p.base_id, p.base_seq, p.last_seq
                UNION ALL
                SELECT b.journal_id, b.base_id, b.base_seq, min(u.upto, u.base_seq)
                FROM part AS u CROSS JOIN journals AS b ON b.journal_id = u.base_id
                WHERE u.base_seq > p.processed
            )
            SELECT min((
                SELECT e.seq FROM journal_entries AS e INDEXED BY journal_entries_inputs
                WHERE e.journal_id = u.journal_id AND e.is_input AND e.seq > p.processed AND e.seq <= u.upto
                ORDER BY e.seq LIMIT 1
            )) FROM part AS u) AS pending_from
    FROM page AS p LEFT JOIN instances AS i ON i.instance_id = p.session_id
    LEFT JOIN journal_wakes AS w ON w.journal_id = p.journal_id
        AND (w.processed, w.seq) = (
            SELECT o.processed, o.seq FROM journal_wakes AS o WHERE o.journal_id = p.journal_id
            ORDER BY o.processed DESC, o.seq DESC LIMIT 1)
),
judged AS MATERIALIZED (
    SELECT p.*, CASE
        WHEN p.closed OR p.instance IN ('completed', 'failed', 'cancelled') THEN 'terminated'
        WHEN p.instance IS NULL THEN 'idle'
        WHEN p.instance = 'suspended' THEN 'failed'
        WHEN EXISTS (SELECT 1 FROM worker_queue AS q WHERE q.instance_id = p.session_id) THEN 'running'
        WHEN p.wake = 'failed' AND p.wake_seq = p.last_seq THEN 'failed'
        WHEN p.wake = 'retried' THEN 'rescheduling'
        WHEN p.pending_from IS NOT NULL THEN 'running'
        WHEN p.requests > 0 THEN 'requires_action'
        WHEN EXISTS (SELECT 1 FROM journal_delegations AS d WHERE d.journal_id = p.journal_id)
          OR EXISTS (SELECT 1 FROM journal_revisits AS v WHERE v.journal_id = p.journal_id) THEN 'waiting'
        ELSE 'idle' END AS status
    FROM counted AS p
)
SELECT p.place, p.session_id, p.journal_id, p.kind, p.parent, p.processed, p.first_seq, p.last_seq, p.size, p.closed,
       p.status, p.pending_from, p.requests,
       (SELECT count(*) FROM journal_revisits AS v WHERE v.journal_id = p.journal_id),
       p.created_at, p.updated_at, p.title, p.owner, p.labels
FROM judged AS p
WHERE p.place = :window
   OR (:status IS NULL OR p.status = :status)
      AND (:updated_since IS NULL OR p.updated_at >= :updated_since)
      AND (:updated_before IS NULL OR p.updated_at < :updated_before)
ORDER BY p.place
LIMIT :limit;

-- ids: the journals of some sessions
SELECT json_group_array(json_array(j.session_id, j.journal_id))
FROM json_each(:session_ids) AS a CROSS JOIN journals AS j ON j.session_id = a.value;

-- describe: change title, owner and labels of a journal, as far as the changes have them
UPDATE journals SET
    title = iif(json_type(:changes, '$.title') IS NULL, title, :changes ->> 'title'),
    owner = iif(json_type(:changes, '$.owner') IS NULL, owner, :changes ->> 'owner'),
    labels = coalesce(:changes -> 'labels', labels),
    updated_at = :now
WHERE session_id = :session_id AND kind = :kind;

-- delete: take journals from their sessions; a row stays until no fork continues it and its entries are gone
UPDATE journals SET session_id = NULL, title = NULL, owner = NULL, labels = '{}' WHERE journal_id IN (SELECT value FROM json_each(:rows));

-- delete_requests: of journals
DELETE FROM journal_requests WHERE journal_id IN (SELECT value FROM json_each(:rows));

-- delete_revisits: of journals
DELETE FROM journal_revisits WHERE journal_id IN (SELECT value FROM json_each(:rows));

-- delete_delegations: of journals, and to them
DELETE FROM journal_delegations WHERE journal_id IN (SELECT value FROM json_each(:rows))
    OR child IN (SELECT j.session_id FROM json_each(:rows) AS r CROSS JOIN journals AS j ON j.journal_id = r.value);

-- delete_steps: of journals
DELETE FROM journal_steps WHERE journal_id IN (SELECT value FROM json_each(:rows));

-- delete_streams: of journals
DELETE FROM journal_streams WHERE journal_id IN (SELECT value FROM json_each(:rows));

-- deleted: of a deleted journal: the journals that it was made from, whether others continue it, whether others were made from
-- it, and whether it is empty
SELECT j.base_id,
       (SELECT json_group_array(p.parent_id) FROM journal_parents AS p WHERE p.journal_id = j.journal_id),
       EXISTS (SELECT 1 FROM journals AS f WHERE f.base_id = j.journal_id AND f.first_seq <= f.base_seq),
       EXISTS (SELECT 1 FROM journal_parents AS p WHERE p.parent_id = j.journal_id),
       j.first_seq > j.last_seq
FROM journals AS j WHERE j.journal_id = :journal_id AND j.session_id IS NULL;

-- remove: a journal that has no entries
DELETE FROM journals WHERE journal_id = :journal_id;

-- remove_parents: where it came from
DELETE FROM journal_parents WHERE journal_id = :journal_id;

-- trim: remove the entries of a journal behind the last entry that other journals continue; all, if none does
DELETE FROM journal_entries WHERE journal_id = :journal_id AND seq > coalesce((
    SELECT max(f.base_seq) FROM journals AS f WHERE f.base_id = :journal_id AND f.first_seq <= f.base_seq), 0);

-- trim_wakes: the same of their ends
DELETE FROM journal_wakes WHERE journal_id = :journal_id AND seq > coalesce((
    SELECT max(f.base_seq) FROM journals AS f WHERE f.base_id = :journal_id AND f.first_seq <= f.base_seq), 0);

-- set_empty: a journal without entries
UPDATE journals SET first_seq = last_seq + 1, size = 0 WHERE journal_id = :journal_id;

-- abandoned: deleted journals that no journal continues, with entries or without use: journals that continued them were pruned
SELECT json_group_array(journal_id) FROM (
    SELECT j.journal_id FROM journals AS j INDEXED BY journals_deleted
    WHERE j.session_id IS NULL
      AND NOT EXISTS (SELECT 1 FROM journals AS f WHERE f.base_id = j.journal_id AND f.first_seq <= f.base_seq)
      AND (j.first_seq <= j.last_seq OR NOT EXISTS (SELECT 1 FROM journal_parents AS p WHERE p.parent_id = j.journal_id))
    LIMIT :window
);

-- empty: remove the first entries of a journal
DELETE FROM journal_entries WHERE (journal_id, seq) IN (
    SELECT journal_id, seq FROM journal_entries WHERE journal_id = :journal_id ORDER BY seq LIMIT :limit
);

-- over: the next journals, each with whether it is over a bound
SELECT json_group_array(json_array(
    journal_id,
    (kept_until IS NULL OR kept_until < :look) AND first_seq <= last_seq
    AND (last_seq - first_seq >= :entries OR size > :size OR oldest_at < :cutoff)))
FROM (SELECT * FROM journals WHERE journal_id > :after ORDER BY journal_id LIMIT :window);

-- over_indexed: journals that are over a bound which an index serves
SELECT json_group_array(journal_id) FROM (
    SELECT old.journal_id FROM journals AS old INDEXED BY journals_by_oldest
    WHERE old.kept_until IS NULL AND old.oldest_at < :cutoff AND old.journal_id > :after
    UNION
    SELECT kept.journal_id FROM journals AS kept INDEXED BY journals_kept
    WHERE kept.kept_until IS NOT NULL AND kept.kept_until < :look AND kept.oldest_at < :cutoff AND kept.journal_id > :after
    UNION
    SELECT long.journal_id FROM journals AS long INDEXED BY journals_by_entries
    WHERE long.last_seq - long.first_seq >= 64 AND long.last_seq - long.first_seq >= :entries AND long.journal_id > :after
      AND (long.kept_until IS NULL OR long.kept_until < :look)
    UNION
    SELECT large.journal_id FROM journals AS large INDEXED BY journals_by_size
    WHERE large.size > 65536 AND large.size > :size AND large.journal_id > :after
      AND (large.kept_until IS NULL OR large.kept_until < :look)
    ORDER BY journal_id LIMIT :window
);

-- keep: journals of which nothing can be removed go behind: for a minute, and each time for twice as long, up to an hour
UPDATE journals SET
    kept_until = :now + min(60 << kept_looks, 3600),
    kept_looks = min(kept_looks + 1, 6)
WHERE journal_id IN (SELECT value FROM json_each(:journal_ids));

-- free_base: the journal that one continues is looked at again
UPDATE journals SET kept_until = NULL, kept_looks = 0
WHERE kept_until IS NOT NULL AND journal_id = (SELECT f.base_id FROM journals AS f WHERE f.journal_id = :journal_id);

-- prune_bounds: of some journals: what they have, and the first entry that must be kept: the first input that waits, the
-- first of a wake with a pending request, or one whose answer waits, or the first that another journal continues
SELECT json_group_array(json_array(
    j.journal_id, j.first_seq, coalesce(j.base_seq, 0), j.last_seq, j.size, j.created_at < :cutoff, min(
        coalesce((
            WITH RECURSIVE place (journal_id, base_id, base_seq, upto) AS (
                SELECT j.journal_id, j.base_id, j.base_seq, j.last_seq
                UNION ALL
                SELECT b.journal_id, b.base_id, b.base_seq, min(p.upto, p.base_seq)
                FROM place AS p CROSS JOIN journals AS b ON b.journal_id = p.base_id
                WHERE p.base_seq > j.processed
            )
            SELECT min((
                SELECT min(coalesce(i.request_seq, i.seq)) FROM journal_entries AS i INDEXED BY journal_entries_inputs
                WHERE i.journal_id = p.journal_id AND i.is_input AND i.seq > j.processed AND i.seq <= p.upto
            )) FROM place AS p
        ), j.last_seq + 1),
        coalesce((SELECT min(r.seq) FROM journal_requests AS r WHERE r.journal_id = j.journal_id), j.last_seq + 1),
        coalesce(
            (SELECT min(f.first_seq) FROM journals AS f WHERE f.base_id = j.journal_id AND f.first_seq <= f.base_seq),
            j.last_seq + 1))))
FROM json_each(:journal_ids) AS a CROSS JOIN journals AS j ON j.journal_id = a.value;

-- oldest: the first entries of a journal: whether they are too old, and their bytes
SELECT json_group_array(json_array(seq, recorded_at < :cutoff, length(CAST(payload AS BLOB)))) FROM (
    SELECT seq, recorded_at, payload FROM journal_entries
    WHERE journal_id = :journal_id AND seq < :before ORDER BY seq LIMIT :limit
);

-- spent: usages of entries of a journal, also of entries that it continues, with the wake that has written or read each
WITH RECURSIVE place (journal_id, base_id, low, upto) AS (
    SELECT journal_id, base_id, coalesce(base_seq, 0), last_seq FROM journals WHERE journal_id = :journal_id
    UNION ALL
    SELECT b.journal_id, b.base_id, coalesce(b.base_seq, 0), min(p.upto, p.low)
    FROM place AS p CROSS JOIN journals AS b ON b.journal_id = p.base_id
    WHERE p.low > :after
)
SELECT json_group_array(json_array(
    coalesce(e.wake_id, (
        SELECT w.wake_id FROM journal_entries AS w
        WHERE w.journal_id = e.journal_id AND w.seq > e.seq AND w.wake_id IS NOT NULL ORDER BY w.seq LIMIT 1)),
    json_extract(e.payload, '$.usage')))
FROM place AS p CROSS JOIN journal_entries AS e
    ON e.journal_id = p.journal_id AND e.seq > max(p.low, :after) AND e.seq <= min(p.upto, :before - 1)
WHERE e.payload LIKE '%"usage"%' AND json_valid(e.payload) AND json_type(e.payload, '$.usage') = 'object';

-- used: what entries of a journal have used that are gone
SELECT used FROM journals WHERE journal_id = :journal_id;

-- set_used: the same
UPDATE journals SET used = :used WHERE journal_id = :journal_id;

-- cut: remove the first entries of a journal
DELETE FROM journal_entries WHERE journal_id = :journal_id AND seq < :first_seq;

-- cut_wakes: and their ends
DELETE FROM journal_wakes WHERE journal_id = :journal_id AND processed < :first_seq AND seq < :first_seq;

-- set_first: the journal begins there now
UPDATE journals SET
    first_seq = :first_seq, size = size - :size, kept_until = NULL, kept_looks = 0,
    oldest_at = iif(:first_seq <= base_seq, oldest_at, coalesce((
        SELECT e.recorded_at FROM journal_entries AS e
        WHERE e.journal_id = :journal_id AND e.seq >= :first_seq ORDER BY e.seq LIMIT 1), :now))
WHERE journal_id = :journal_id;
