-- load: one record
SELECT session_id, state, encoding, schema_version, kind, name, parent, labels::text, message_count, participants::text,
    version, generation, epoch, turn, created_at, updated_at
FROM session_states WHERE session_id = %(session)s

-- save: write one record, if it passes the fences that the caller asked for
-- Changes nothing when the session is `overtaken`; then it is sent again. It is one statement, since the first of two would hold
-- its locks while a large state is still on its way.
WITH begun AS (
    -- A writer without a lease adds the row of a session that has none, expired and with a new epoch. So a first claim
    -- waits for this statement, takes a later epoch, and hydrates the new state. Without the row it would not wait, and could
    -- keep the old state.
    INSERT INTO sessions (session_id, worker_id, incarnation, epoch, locked_until, touched_at)
    SELECT %(session)s, '', '', nextval('epochs'), c.now, c.now FROM (SELECT clock() AS now) c
    WHERE %(epoch)s::bigint IS NULL AND NOT EXISTS (SELECT FROM sessions WHERE session_id = %(session)s)
    ON CONFLICT (session_id) DO NOTHING
    RETURNING session_id
), session AS MATERIALIZED (
    SELECT epoch FROM sessions
    WHERE session_id = %(session)s AND (SELECT count(*) FROM begun) >= 0 -- always true: the row is made first
    FOR NO KEY UPDATE
), overtaken AS MATERIALIZED (
    -- Another transaction has inserted the row since this statement began, which does not see it.
    SELECT %(epoch)s::bigint IS NULL AND NOT EXISTS (SELECT FROM begun) AND NOT EXISTS (SELECT FROM session) AS yes
), record AS MATERIALIZED (
    SELECT version, generation, epoch, turn FROM session_states
    WHERE session_id = %(session)s AND (SELECT count(*) FROM session) >= 0 -- always true: the session is locked first
    FOR NO KEY UPDATE
), verdict AS MATERIALIZED (
    SELECT o.yes AS overtaken, r.version, v.repeated, v.same, v.known,
        NOT o.yes AND NOT v.repeated AND v.same AND v.known AND v.newest AS fits, clock() AS now
    FROM overtaken o
    LEFT JOIN record r ON true
    LEFT JOIN session s ON true
    CROSS JOIN LATERAL (
        SELECT (r.turn = %(turn)s) IS TRUE AS repeated, (r.generation = %(generation)s) IS NOT FALSE AS same,
            coalesce(r.version, 0) = coalesce(%(expected)s, r.version, 0) AS known,
            (s.epoch > %(epoch)s OR r.epoch > %(epoch)s) IS NOT TRUE AS newest
    ) v
), bumped AS (
    -- A writer without a lease: the state in the memory of the session's holder is no longer used.
    UPDATE sessions SET epoch = nextval('epochs')
    WHERE session_id = %(session)s AND %(epoch)s::bigint IS NULL AND (SELECT fits FROM verdict)
), added AS (
    -- Without ON CONFLICT, as in `commit_turns`.
    INSERT INTO session_states (session_id, state, encoding, schema_version, kind, name, parent, labels, message_count,
        participants, version, generation, epoch, turn, created_at, updated_at)
    SELECT %(session)s, %(state)s, %(encoding)s, %(schema)s, %(kind)s, %(name)s, %(parent)s, %(labels)s::jsonb,
        %(messages)s, %(participants)s::jsonb, 1, coalesce(%(generation)s, gen_random_uuid()::text), %(epoch)s, %(turn)s,
        least(%(created)s::timestamptz, now), least(%(updated)s::timestamptz, now)
    FROM verdict WHERE fits AND version IS NULL
), written AS (
    UPDATE session_states r
    SET state = %(state)s, encoding = %(encoding)s, schema_version = %(schema)s, kind = %(kind)s, name = %(name)s,
        parent = %(parent)s, labels = %(labels)s::jsonb, message_count = %(messages)s,
        participants = %(participants)s::jsonb, version = v.version + 1, epoch = coalesce(%(epoch)s, r.epoch),
        turn = %(turn)s, updated_at = least(%(updated)s::timestamptz, v.now),
        created_at = CASE WHEN %(created)s::timestamptz IS NULL THEN r.created_at ELSE least(%(created)s::timestamptz, v.now) END
    FROM verdict v WHERE r.session_id = %(session)s AND v.fits AND v.version IS NOT NULL
), result AS (
    SELECT overtaken, version, repeated, same, known, fits FROM verdict
)
SELECT * FROM result

-- saved: the effect of save, for `with_shares`
SELECT 1, 'done' FROM result WHERE fits

-- delete: some records, as far as they may be deleted
-- Records are checked without locks, then locked and checked again. Parts: `idle` keeps records in use, and counts a record that
-- another transaction has locked as in use; `forced` does not. `whole` deletes whole families. `real` deletes; `dry` only says what
-- would be deleted. A `forced` one changes nothing when a session is overtaken, as in `save`: then its result is one row without an
-- id.
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%(named)s) AS a (session_id text, family text, version bigint, generation text)
), named AS MATERIALIZED (
    SELECT n.*, (r.version = n.version) IS NOT FALSE AND (r.generation = n.generation) IS NOT FALSE
-- [idle
        AND NOT EXISTS (
            -- By its id, and never by a worker, to which the planner may ascribe few sessions.
            SELECT FROM (SELECT * FROM sessions WHERE session_id = n.session_id OFFSET 0) s
            JOIN alive_workers USING (worker_id, incarnation) WHERE s.locked_until > clock())
        AND (SELECT true FROM worker_queue q WHERE q.session_id = n.session_id LIMIT 1) IS NULL
-- idle]
-- [whole
        -- Parents by a range, in the order of the index: statistics may say that any record has most of them as children.
        AND (SELECT true FROM session_states c
             WHERE (c.parent, c.updated_second, c.session_id) > (n.session_id, '-infinity'::timestamp, '')
               AND c.parent <= n.session_id AND c.session_id NOT IN (SELECT session_id FROM asked)
             ORDER BY c.parent, c.updated_second, c.session_id LIMIT 1) IS NULL
-- whole]
        AS goes
    FROM asked n CROSS JOIN LATERAL (SELECT version, generation FROM session_states WHERE session_id = n.session_id OFFSET 0) r
), candidate AS MATERIALIZED (
    SELECT * FROM named WHERE family NOT IN (SELECT family FROM named WHERE NOT goes)
-- [dry
)
SELECT session_id FROM candidate
-- dry]
-- [real
), begun AS (
    -- As in save.
    INSERT INTO sessions AS s (session_id, worker_id, incarnation, epoch, locked_until, touched_at)
    SELECT c.session_id, '', '', nextval('epochs'), t.now, t.now
    FROM candidate c CROSS JOIN (SELECT clock() AS now) t
-- [idle
    WHERE (SELECT true FROM sessions o WHERE o.session_id = c.session_id) IS NULL
    ORDER BY c.session_id
    ON CONFLICT (session_id) DO NOTHING
-- idle]
-- [forced
    ORDER BY c.session_id
    -- No row meets the condition: existing rows are only locked, in one order with the new ones.
    ON CONFLICT (session_id) DO UPDATE SET epoch = s.epoch WHERE false
-- forced]
    RETURNING s.session_id
), session AS MATERIALIZED (
    SELECT s.session_id, s.worker_id, s.incarnation, s.locked_until FROM sessions s
    WHERE s.session_id = ANY (ARRAY (SELECT session_id FROM candidate)) AND (SELECT count(*) FROM begun) >= 0
    ORDER BY s.session_id FOR NO KEY UPDATE
-- [idle
    SKIP LOCKED
-- idle]
), locked AS MATERIALIZED (
    SELECT session_id FROM begun
    UNION ALL
    SELECT s.session_id FROM session s
-- [idle
    WHERE (SELECT true FROM alive_workers w
           WHERE w.worker_id = s.worker_id AND w.incarnation = s.incarnation AND s.locked_until > clock()) IS NULL
      AND NOT (s.locked_until > clock() AND is_alive(s.worker_id, s.incarnation))
-- idle]
), record AS MATERIALIZED (
    SELECT r.session_id, r.version, r.generation FROM session_states r
    WHERE r.session_id = ANY (ARRAY (SELECT session_id FROM locked))
    ORDER BY r.session_id FOR UPDATE
-- [idle
    SKIP LOCKED
-- idle]
), kept AS MATERIALIZED (
    SELECT c.session_id, c.family FROM candidate c
    WHERE c.session_id NOT IN (
        SELECT r.session_id FROM record r JOIN named n USING (session_id)
        WHERE (r.version = n.version) IS NOT FALSE AND (r.generation = n.generation) IS NOT FALSE)
), overtaken AS MATERIALIZED (
    SELECT NULL::text AS session_id
-- [idle
    WHERE false
-- idle]
-- [forced
    WHERE EXISTS (SELECT FROM candidate WHERE session_id NOT IN (SELECT session_id FROM locked))
-- forced]
), doomed AS MATERIALIZED (
    SELECT session_id FROM candidate
    WHERE family NOT IN (SELECT family FROM kept) AND NOT EXISTS (SELECT FROM overtaken)
), bumped AS (
    UPDATE sessions SET epoch = nextval('epochs') WHERE session_id = ANY (ARRAY (SELECT session_id FROM doomed))
), removed AS (
    DELETE FROM session_states WHERE session_id = ANY (ARRAY (SELECT session_id FROM doomed))
), result AS (
    SELECT session_id FROM doomed UNION ALL SELECT session_id FROM overtaken
)
SELECT * FROM result
-- real]

-- deleted: the effects of delete, for `with_shares`
SELECT array_position(%(targets)s::text[], session_id), 'done' FROM result WHERE session_id IS NOT NULL

-- list: one page of records, newest first; or how many there are; conditions on updated_second repeat others, for the index
-- Parts: `rows` or `number`.
-- [rows
SELECT p.*, (SELECT h.worker_id FROM held_sessions h WHERE h.session_id = p.session_id)
FROM (
    SELECT r.session_id, r.schema_version, r.kind, r.name, r.parent, r.labels::text, r.message_count, r.participants::text,
        r.version, r.generation, r.epoch, octet_length(r.state), r.created_at, r.updated_at,
        extract(epoch FROM clock() - r.updated_at)::float8 AS idle
-- rows]
-- [number
SELECT count(*) FROM (
    SELECT
-- number]
    FROM session_states r
    WHERE (%(kind)s::text IS NULL OR r.kind = %(kind)s)
      AND (%(name)s::text IS NULL OR r.name = %(name)s)
      AND (%(parent)s::text IS NULL OR r.parent = %(parent)s)
      AND (%(schema)s::bigint IS NULL OR r.schema_version = %(schema)s)
      AND (%(labels)s::jsonb IS NULL OR r.labels @> %(labels)s::jsonb AND r.labels <> '{}')
      AND (%(participant)s::jsonb IS NULL OR r.participants @> %(participant)s::jsonb AND r.participants <> '[]')
      -- Of parents that are missing; each parent is looked up one time.
      AND (NOT %(orphaned)s OR r.session_id = ANY (ARRAY (
          WITH RECURSIVE p (parent) AS (
              (SELECT c.parent FROM session_states c WHERE c.parent IS NOT NULL ORDER BY c.parent LIMIT 1)
              UNION ALL
              SELECT (SELECT c.parent FROM session_states c WHERE c.parent > p.parent ORDER BY c.parent LIMIT 1)
              FROM p WHERE p.parent IS NOT NULL
          )
          SELECT c.session_id
          FROM p CROSS JOIN LATERAL (SELECT session_id FROM session_states WHERE parent = p.parent OFFSET 0) c
          WHERE NOT EXISTS (SELECT FROM session_states h WHERE h.session_id = p.parent))))
      AND (NOT %(heads)s OR r.parent IS NULL OR NOT EXISTS (SELECT FROM session_states h WHERE h.session_id = r.parent))
      AND (%(prefix)s::text IS NULL OR starts_with(r.session_id, %(prefix)s))
      AND (%(holder)s::text IS NULL OR r.session_id = ANY (ARRAY (
          SELECT h.session_id FROM held_sessions h WHERE h.worker_id = %(holder)s)))
      AND (%(updated_after)s::timestamptz IS NULL
           OR r.updated_at > %(updated_after)s
              AND r.updated_second >= date_trunc('second', %(updated_after)s::timestamptz AT TIME ZONE 'UTC'))
      AND (%(created_after)s::timestamptz IS NULL OR r.created_at > %(created_after)s)
      AND (%(idle_for)s::float8 IS NULL
           OR r.updated_at <= (SELECT clock()) - %(idle_for)s * interval '1 s'
              AND r.updated_second <= (SELECT clock()) AT TIME ZONE 'UTC' - %(idle_for)s * interval '1 s')
      AND (%(after_time)s::timestamptz IS NULL
           OR (r.updated_second, r.updated_at, r.session_id)
              < (date_trunc('second', %(after_time)s::timestamptz AT TIME ZONE 'UTC'), %(after_time)s, %(after_id)s))
-- [rows
    ORDER BY r.updated_second DESC, r.updated_at DESC, r.session_id DESC LIMIT %(limit)s
-- rows]
) p
-- [rows
ORDER BY p.updated_at DESC, p.session_id DESC
-- rows]

-- columns: of a record, without its state, and its holder
SELECT r.session_id, r.schema_version, r.kind, r.name, r.parent, r.labels::text, r.message_count, r.participants::text,
    r.version, r.generation, r.epoch, octet_length(r.state), r.created_at, r.updated_at,
    extract(epoch FROM clock() - r.updated_at)::float8,
    (SELECT h.worker_id FROM held_sessions h WHERE h.session_id = r.session_id)

-- children: one page of the records of some parents, which come in order, as the records do
-- By a range, in the order of the index: statistics may say that any record has most of them as children.
-- include columns
FROM (
    SELECT c.*
    FROM unnest(%(parent)s) AS p (session_id)
    CROSS JOIN LATERAL (
        SELECT * FROM session_states
        WHERE (parent, updated_second, session_id) > (
                p.session_id,
                CASE WHEN p.session_id = %(after_parent)s
                     THEN date_trunc('second', %(after_time)s::timestamptz AT TIME ZONE 'UTC') ELSE '-infinity' END,
                CASE WHEN p.session_id = %(after_parent)s THEN %(after_id)s ELSE '' END)
          AND parent <= p.session_id
        ORDER BY parent, updated_second, session_id LIMIT %(limit)s
    ) c
    LIMIT %(limit)s
) r

-- ancestors: the records of a session, of its parent, and so on
WITH RECURSIVE up (session_id, parent) AS (
    SELECT session_id, parent FROM session_states WHERE session_id = %(session)s
    UNION
    -- OFFSET 0: by the index, however many the planner takes them for.
    SELECT p.session_id, p.parent
    FROM up u CROSS JOIN LATERAL (SELECT session_id, parent FROM session_states WHERE session_id = u.parent OFFSET 0) p
)
-- include columns
FROM (SELECT session_id FROM up LIMIT %(limit)s) u
CROSS JOIN LATERAL (SELECT * FROM session_states WHERE session_id = u.session_id OFFSET 0) r
