-- exists: whether there is a schema
SELECT FROM pg_namespace WHERE nspname = %s;

-- next_due: as in sqlite.sql: next_due; and next_lease, where work waits
SELECT extract(epoch FROM min(at))::float8
    -- columns of guests
FROM (
    SELECT min(visible_at) AS at FROM orchestrator_queue WHERE visible_at > clock() AND route NOT IN ('suspended', 'gated')
    UNION ALL
    -- What no worker takes pauses again and again, unless it fails at last.
    SELECT min(visible_at) FROM worker_queue
    WHERE visible_at > clock() AND route <> 'blocked' AND (passed_over IS NULL OR fail_after IS NOT NULL)
    UNION ALL
    SELECT min(attend_at) FROM worker_queue WHERE attend_at > clock()
    UNION ALL
    SELECT min(unknown_since) + %(unknown)s * interval '1 s' FROM worker_queue
    WHERE unknown_since + %(unknown)s * interval '1 s' > clock()
    UNION ALL
    SELECT min(unknown_since) + %(unknown)s * interval '1 s' FROM instances
    WHERE unknown_since + %(unknown)s * interval '1 s' > clock()
    UNION ALL
    -- The next sweep begins a start that has waited for the end of its instance. The clock may stand where the last one was.
    SELECT clock() + interval '1 s' WHERE cardinality(%(alive)s::text[]) > 0 AND EXISTS (
        SELECT FROM instances WHERE next_start IS NOT NULL AND status IN ('completed', 'failed', 'cancelled'))
    UNION ALL
    SELECT min(at) FROM (
    SELECT min(locked_until) AS at FROM workers
    WHERE locked_until > clock() AND incarnation <> ALL (%(alive)s)
    UNION ALL
    SELECT min(locked_until) FROM worker_queue
    WHERE locked_until > clock() AND lock_incarnation <> ALL (%(busy)s)
    UNION ALL
    SELECT min(least(s.locked_until, s.next_until))
    FROM worker_queue AS q JOIN sessions AS s ON s.session_id = q.session_id
    WHERE q.visible_at <= clock() AND least(s.locked_until, s.next_until) > clock()
    UNION ALL
    -- Not of limited work: what no worker takes lends its slots to other work, again and again.
    SELECT min(visible_at) + %(offer)s * interval '1 s' FROM worker_queue
    WHERE visible_at <= clock() AND visible_at + %(offer)s * interval '1 s' > clock() AND route LIKE 'new%%' AND limited IS NOT TRUE
    UNION ALL
    SELECT min(visible_at) + %(unknown)s * interval '1 s' FROM worker_queue
    WHERE visible_at <= clock() AND visible_at + %(unknown)s * interval '1 s' > clock() AND route LIKE '%%#%%' AND limited IS NOT TRUE
    UNION ALL
    SELECT min(until) FROM session_holds WHERE until > clock()
    UNION ALL
    SELECT min(locked_until) FROM sessions WHERE locked_until > clock()
    ) AS lease WHERE EXISTS (
        SELECT 1 FROM worker_queue WHERE visible_at <= clock() AND route NOT IN ('blocked', 'gated')
          AND (lock_incarnation IS NULL OR lock_incarnation <> ALL (%(busy)s)))
    OR EXISTS (SELECT 1 FROM orchestrator_queue WHERE visible_at <= clock() AND route NOT IN ('suspended', 'gated'))
) AS due;

-- move_workers: the leases of workers that run
UPDATE workers SET locked_until = locked_until + %(seconds)s * interval '1 s'
WHERE locked_until > clock() AND incarnation = ANY (%(alive)s);

-- move_sessions: the locks of their sessions whose work they run
UPDATE sessions SET locked_until = locked_until + %(seconds)s * interval '1 s'
WHERE locked_until > clock() AND incarnation = ANY (%(alive)s) AND session_id IN (
    SELECT session_id FROM worker_queue
    WHERE lock_incarnation = ANY (%(busy)s) AND locked_until > clock());

-- move_items: the locks of that work
UPDATE worker_queue SET locked_until = locked_until + %(seconds)s * interval '1 s'
WHERE locked_until > clock() AND lock_incarnation = ANY (%(busy)s);

-- make_clock: microseconds, in a sequence. It is inlined, as the real one, and what it returns is in no plan
CREATE SEQUENCE env_clock;
CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$SELECT to_timestamp(pg_sequence_last_value('env_clock') / 1e6)$$;

-- set_clock: immediately; a rollback does not undo it
SELECT setval('env_clock', %s);

-- drop: with all that is in it; again, where the answer was lost
DROP SCHEMA IF EXISTS {} CASCADE;

-- note_rows: of all tables, as the migrations have left them. A table without pages never had a row
DO $do$
DECLARE name text;
BEGIN
    FOR name IN
        SELECT relname FROM pg_class
        WHERE relnamespace = current_schema::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE format('CREATE TEMP TABLE %I AS TABLE %I', 'noted_' || name, name);
    END LOOP;
END $do$;

-- restore_rows: and the sequences
DO $do$
DECLARE name text;
DECLARE changed text[] := ARRAY(
    SELECT relname FROM pg_class
    WHERE relnamespace = current_schema::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0
      AND relname NOT IN ('migrations', 'timeline', 'granted_roles'));
BEGIN
    EXECUTE (SELECT 'TRUNCATE ' || string_agg(quote_ident(each), ', ') FROM unnest(changed) AS each);
    FOREACH name IN ARRAY changed LOOP
        IF to_regclass(format('pg_temp.%I', 'noted_' || name)) IS NOT NULL THEN
            EXECUTE format('INSERT INTO %I OVERRIDING SYSTEM VALUE SELECT * FROM pg_temp.%I', name, 'noted_' || name);
        END IF;
    END LOOP;
    PERFORM setval(oid, seqstart, false) FROM pg_sequence JOIN pg_class ON oid = seqrelid
    WHERE relnamespace = current_schema::regnamespace AND relname <> 'env_clock';
END $do$;
