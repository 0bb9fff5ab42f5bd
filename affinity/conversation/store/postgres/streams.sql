-- write: provisional parts; of each journal only parts of one attempt of one wake, the last that the batch names. Returns
-- the journals whose parts are not added, since those before them are lost.
WITH part AS MATERIALIZED (
    SELECT p.*, last_value(p.wake_id) OVER (PARTITION BY p.journal_id ORDER BY p.n ROWS BETWEEN UNBOUNDED PRECEDING
            AND UNBOUNDED FOLLOWING) AS last_wake,
        max(p.attempt) OVER (PARTITION BY p.journal_id, p.wake_id) AS last_attempt,
        min(p.number) OVER (PARTITION BY p.journal_id, p.wake_id, p.attempt) > p.first AS continues
    FROM unnest(%(session)s, %(journal)s, %(wake)s, %(attempt)s, %(number)s, %(first)s, %(payload)s)
        WITH ORDINALITY AS p (session_id, journal_id, wake_id, attempt, number, first, payload, n)
), current AS MATERIALIZED (
    SELECT p.*, NOT EXISTS (
            SELECT FROM journal_streams s
            WHERE s.journal_id = p.journal_id AND s.wake_id = p.wake_id AND s.attempt = p.attempt) AS begins
    FROM part p JOIN journals j ON j.journal_id = p.journal_id AND j.session_id = p.session_id
    WHERE p.wake_id = p.last_wake AND p.attempt = p.last_attempt
      AND CASE WHEN j.ended_wake = p.wake_id THEN p.attempt > j.ended_attempt
               ELSE NOT EXISTS (
                   SELECT FROM journal_entries e WHERE e.journal_id = p.journal_id AND e.wake_id = p.wake_id) END
      AND NOT EXISTS (
          SELECT FROM journal_streams s
          WHERE s.journal_id = p.journal_id AND s.wake_id = p.wake_id AND s.attempt > p.attempt)
), accepted AS MATERIALIZED (
    SELECT * FROM current c WHERE NOT (c.begins AND c.continues)
), replaced AS (
    DELETE FROM journal_streams s USING accepted a
    WHERE a.begins AND s.journal_id = a.journal_id AND (s.wake_id, s.attempt) <> (a.wake_id, a.attempt)
), added AS (
    INSERT INTO journal_streams (journal_id, wake_id, attempt, number, payload)
    SELECT journal_id, wake_id, attempt, number, payload FROM accepted
    ON CONFLICT (journal_id, wake_id, attempt, number) DO NOTHING
)
SELECT NULL::bigint, pg_notify(%(channel)s, n)::text FROM unnest(%(notices)s) AS n
UNION ALL
SELECT DISTINCT c.journal_id, NULL FROM current c WHERE c.begins AND c.continues

-- retract: remove the parts of an attempt and of lower ones, and note that later ones are ignored
WITH ended AS (
    UPDATE journals
    SET ended_attempt = CASE WHEN ended_wake = %(wake)s THEN greatest(ended_attempt, %(attempt)s) ELSE %(attempt)s END,
        ended_wake = %(wake)s
    WHERE session_id = %(session)s AND journal_id = %(journal)s
), removed AS (
    DELETE FROM journal_streams WHERE journal_id = %(journal)s AND wake_id = %(wake)s AND attempt <= %(attempt)s
)
SELECT pg_notify(%(channel)s, %(session)s)
