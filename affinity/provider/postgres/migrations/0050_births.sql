-- What is born with a journal: no quota refuses what a wake forks, and entries that are older than their journal count as old.
-- oldest code: 49

DO $do$
DECLARE
    counted text := $sql$    IF EXISTS (
        SELECT FROM create_instances_1($sql$;
    of_wakes text := $sql$    IF (_birth ->> 'of_wake')::boolean THEN
        WITH created AS (
            INSERT INTO instances (instance_id, birth, name, version, session_id, created_at, updated_at)
            VALUES (_session, _birth ->> 'birth', _birth ->> 'name', _birth ->> 'version', _session, _now, _now)
            ON CONFLICT (instance_id) DO NOTHING
            RETURNING instance_id
        )
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        SELECT c.instance_id, 'new', _now, _birth ->> 'start' FROM created c;
    ELSIF EXISTS (
        SELECT FROM create_instances_1($sql$;
    size text := $sql$e.journal_id = _id)
    WHERE j.journal_id = _id;$sql$;
    age text := $sql$e.journal_id = _id),
        oldest_at = least(oldest_at, CASE WHEN _base IS NULL
            THEN (SELECT min(e.recorded_at) FROM journal_entries e WHERE e.journal_id = _id) END)
    WHERE j.journal_id = _id;$sql$;
    journal text := pg_get_functiondef('bear_journal_1'::regproc);
    journals text := pg_get_functiondef('bear_journals_1'::regproc);
BEGIN
    ASSERT strpos(journal, counted) > 0 AND strpos(journal, size) > 0 AND strpos(journals, 'bear_journal_1(b.birth)') > 0;
    EXECUTE replace(replace(replace(journal, counted, of_wakes), size, age), 'bear_journal_1', 'bear_journal_2');
    EXECUTE replace(journals, 'bear_journal_1(b.birth)', $sql$bear_journal_2(b.birth || '{"of_wake": true}')$sql$);
END $do$;

-- That of clients, to which the quotas apply. The one above is for workers alone.
CREATE OR REPLACE FUNCTION bear_journal_1(_birth jsonb, OUT outcome text, OUT born_id bigint, OUT born_seq bigint)
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    SELECT b.* INTO outcome, born_id, born_seq FROM bear_journal_2(_birth - 'of_wake') b;
END $$;

DO $do$
BEGIN
    EXECUTE format('ALTER FUNCTION bear_journal_1 SET search_path = %I, pg_temp', current_schema);
END $do$;
REVOKE EXECUTE ON FUNCTION bear_journal_2 FROM PUBLIC;

UPDATE journals j SET oldest_at = e.recorded_at
FROM journal_entries e
WHERE j.lineage = 'import' AND e.journal_id = j.journal_id AND e.seq = j.first_seq AND e.recorded_at < j.oldest_at;

-- No code since 0049 calls it, nor do the rights that the release of 0049 gives name it.
DROP FUNCTION append_journals_1;
