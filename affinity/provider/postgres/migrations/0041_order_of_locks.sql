-- Journals that are there are locked before instances are created, as a wake does: it has locked its journal when it creates
-- the instance of a child. So who appends to both waits for the journal, and has created nothing when it waits.
ALTER FUNCTION start_journals(
    text[], text[], text[], text[], text[], text[], text[], text[], text[], bigint[], text[], bigint[]
) RENAME TO create_missing_journals;

CREATE FUNCTION start_journals(
    _session text[], _kind text[], _entry_kind text[], _event text[], _sender text[], _start_name text[], _start text[],
    _start_birth text[], _start_version text[], _start_journal bigint[], _start_parent text[], _only bigint[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM journals j WHERE j.session_id = ANY (_session) ORDER BY j.session_id FOR NO KEY UPDATE;
    RETURN create_missing_journals(_session, _kind, _entry_kind, _event, _sender, _start_name, _start, _start_birth,
        _start_version, _start_journal, _start_parent, _only);
END $$;
