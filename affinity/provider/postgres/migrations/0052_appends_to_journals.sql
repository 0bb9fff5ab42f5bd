-- Appends to a journal of a given id: a session that was deleted and created again under the same id has another one. See
-- `JournalAppend.journal_id`. An append that is refused after it has created a journal takes no messages of an instance that was
-- there before.
-- oldest code: 50

DO $do$
DECLARE
    appends text := pg_get_functiondef('append_journals_2'::regproc);
    others text := pg_get_functiondef('append_other_journals_2'::regproc);
    bounces text := pg_get_functiondef('bounce_journals_1'::regproc);
    starts text := $sql$
    IF _journal IS NOT NULL THEN
        -- Only the instance may be created for these, and not the journal.
        _start_name := ARRAY (
            SELECT CASE WHEN _journal[s.k] IS NULL OR j.journal_id = _journal[s.k] THEN _start_name[s.k] END
            FROM unnest(_session) WITH ORDINALITY AS s (session_id, k)
            LEFT JOIN journals j ON j.session_id = s.session_id ORDER BY s.k);
    END IF;
$sql$;
    starting text := '    IF _start_name IS NOT NULL AND EXISTS (';
    passed text := '_sender, _round, _rounds, _only) a;';
    unknown text := $sql$WHEN j.journal_id IS NULL THEN 'unknown'$sql$;
    no_start text := 'WHEN j.journal_id IS NULL AND (_start_name[s.k] IS NULL';
    undoing text := $sql$), unsent AS (
            DELETE FROM orchestrator_queue q USING empty e WHERE q.instance_id = e.session_id
        )
        DELETE FROM instances i USING empty e
        WHERE i.instance_id = e.session_id AND i.birth = ANY (_start_birth);$sql$;
    undone text := $sql$), gone AS (
            -- Not an instance that was there before, which keeps its messages.
            DELETE FROM instances i USING empty e
            WHERE i.instance_id = e.session_id AND i.birth = ANY (_start_birth) RETURNING i.instance_id
        )
        DELETE FROM orchestrator_queue q USING gone g WHERE q.instance_id = g.instance_id;$sql$;
    is_other text := 'WHEN (j.journal_id <> _journal[s.k]) IS TRUE OR j.journal_id IS NULL';
BEGIN
    ASSERT strpos(appends, '_only bigint[] DEFAULT NULL::bigint[], OUT') > 0 AND strpos(appends, passed) > 0
        AND strpos(appends, unknown) > 0 AND strpos(others, '_only bigint[], OUT') > 0 AND strpos(others, no_start) > 0
        AND strpos(others, starting) > 0 AND strpos(others, undoing) > 0 AND strpos(bounces, 'message text)') > 0
        AND strpos(bounces, 'input, message, n)') > 0 AND strpos(bounces, 'input, message, round') > 0;
    EXECUTE replace(replace(replace(replace(replace(appends,
        'append_journals_2', 'append_journals_3'), 'append_other_journals_2', 'append_other_journals_3'),
        '_only bigint[] DEFAULT NULL::bigint[], OUT',
        '_only bigint[] DEFAULT NULL::bigint[], _journal bigint[] DEFAULT NULL::bigint[], OUT'),
        passed, '_sender, _round, _rounds, _only, _journal) a;'),
        unknown, is_other || $sql$ THEN 'unknown'$sql$);
    EXECUTE replace(replace(replace(replace(replace(others, undoing, undone),
        'append_other_journals_2', 'append_other_journals_3'),
        '_only bigint[], OUT', '_only bigint[], _journal bigint[], OUT'),
        starting, starts || starting),
        no_start, is_other || ' AND (_start_name[s.k] IS NULL');
    EXECUTE replace(replace(replace(replace(replace(replace(replace(bounces,
        'append_journals_2', 'append_journals_3'),
        'message text)', 'message text, journal bigint)'),
        'input, message, n)', 'input, message, journal, n)'),
        'input, message, round', 'input, message, journals, round'),
        'message text[];', 'message text[]; journals bigint[];'),
        'array_agg(b.message ORDER BY b.n),', 'array_agg(b.message ORDER BY b.n), array_agg(b.journal ORDER BY b.n),'),
        '_round => round,', '_journal => journals, _round => round,');
    EXECUTE replace(pg_get_functiondef('append_input_1'::regproc), 'append_journals_2', 'append_journals_3');
    -- For the code of version 50.
    EXECUTE split_part(appends, 'AS $function$', 1) || $sql$AS $function$
BEGIN
    SELECT a.places, a.outcomes, a.seqs, a.journal_ids, a.created, a.woken, a.holders
    INTO places, outcomes, seqs, journal_ids, created, woken, holders
    FROM append_journals_3(_session, _kind, _entry_kind, _entry, _event, _wake, _input, _message, _unread_limit,
        _start_name, _start, _start_birth, _start_version, _start_journal, _start_parent, _answer, _answer_kind,
        _answer_wake, _drops, _closes, _sender, _round, _rounds, _only) a;
END $function$ $sql$;
END $do$;
REVOKE EXECUTE ON FUNCTION append_journals_3 FROM PUBLIC;

-- append_journals_2 called it, which calls append_journals_3 now.
DROP FUNCTION append_other_journals_2;
