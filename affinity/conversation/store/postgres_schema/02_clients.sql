-- The writes of clients to journals, by functions that check their arguments: see
-- affinity/provider/postgres/schema/12_clients.sql.

-- Refuses a description but a title, an owner and labels (`check_description`).
CREATE FUNCTION check_client_description(_about jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT has_fields(jsonb_strip_nulls(_about), '{"title": "string", "owner": "string", "labels": "object"}')
       OR octet_length(_about ->> 'title') > 1024
       OR jsonb_typeof(_about -> 'labels') = 'null'
       OR (SELECT count(*) > 32 OR bool_or(jsonb_typeof(l.value) <> 'string') FROM jsonb_each(_about -> 'labels') AS l) THEN
        PERFORM deny_client('describe a conversation by more than a title, an owner and labels, which are texts');
    END IF;
    PERFORM check_client_ids(ARRAY[_about ->> 'owner'] || ARRAY (
        SELECT unnest(ARRAY[l.key, l.value]) FROM jsonb_each_text(_about -> 'labels') AS l));
END $$;

-- Whether entries of a kind are written by wakes only (`_NO_INPUT` in affinity/conversation/events.py).
CREATE FUNCTION is_kind_of_wakes(_kind text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT _kind ~ '^(conversation|span|child|run|call|agent)\.'
$$;

-- Whether an input is a dead letter of the session's journal: an input that a failed wake has set aside, to be sent again.
CREATE FUNCTION is_dead_letter(_session text, _kind text, _entry text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM journals j
        CROSS JOIN LATERAL find_entries(j.journal_id, 0, j.last_seq + 1, ARRAY['conversation.dead_letters'], NULL, NULL, false,
            false, 1000000) f
        JOIN journal_entries d ON d.journal_id = f.owner AND d.seq = f.seq
        CROSS JOIN LATERAL jsonb_array_elements_text(d.payload::jsonb -> 'inputs') AS i (seq)
        JOIN journal_segments(j.journal_id) s ON i.seq::bigint > s.low AND i.seq::bigint <= s.high
        JOIN journal_entries e ON e.journal_id = s.journal_id AND e.seq = i.seq::bigint
        WHERE j.session_id = _session AND e.kind = _kind
          AND read_client_json(e.payload) - '_' = read_client_json(_entry) - '_');
END $$;

-- Refuses an entry but an input of a client. `_session`: in whose journal; a dead letter of that may be sent again. `_answer`: the
-- request that it answers. What stands beside the event is of wakes, but for a trace and headers.
CREATE FUNCTION check_client_entry(
    _session text, _kind text, _entry text, _event text, _answer text = NULL, _answer_kind text = NULL, _drops boolean = NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    document jsonb := read_client_json(_entry);
BEGIN
    IF _kind IN ('child.ended', 'run.ended', 'call.ended') AND starts_with(_event, 'retry/') AND _drops IS NOT TRUE
       AND _answer IS NULL THEN
        IF NOT is_dead_letter(_session, _kind, _entry) THEN
            PERFORM deny_client('append an entry that only wakes write');
        END IF;
        RETURN;
    END IF;
    IF jsonb_typeof(document) IS DISTINCT FROM 'object' THEN
        PERFORM deny_client('append an entry that is no JSON object');
    ELSIF is_kind_of_wakes(_kind) IS NOT FALSE OR octet_length(_kind) > 64
       OR document ? 'kind' AND document ->> 'kind' IS DISTINCT FROM _kind THEN
        PERFORM deny_client('append an entry that only wakes write');
    ELSIF document ? '_' AND NOT has_fields(document -> '_', '{"trace": "string", "headers": "headers"}') THEN
        PERFORM deny_client('append an entry with the facts of a delegation');
    ELSIF (_drops IS TRUE) <> (_kind = 'user.interrupt') THEN
        PERFORM deny_client('drop requests with another entry than an interrupt');
    ELSIF _answer IS NULL AND _kind IN ('user.tool_confirmation', 'user.custom_tool_result')
       OR _answer IS NOT NULL AND (document ->> 'request_id' = _answer AND _answer_kind = CASE _kind
            WHEN 'user.tool_confirmation' THEN 'agent.tool_confirmation'
            WHEN 'user.custom_tool_result' THEN 'agent.custom_tool_use' ELSE _answer_kind END) IS NOT TRUE THEN
        PERFORM deny_client('append an answer to another request than it names');
    ELSIF _event ~ '^(delegation|interrupt|trace|cancelled|conversation\.status_changed|(child|run|call)\.ended)/' THEN
        PERFORM deny_client('use an event id of the conversations themselves');
    END IF;
    PERFORM check_client_ids(ARRAY[_kind, _event, _answer]);
END $$;

-- Appends to journals as `append_journals` does: inputs, and the notes that a conversation is resumed or terminated.
CREATE FUNCTION client_append_journals(
    _session text[], _kind text[], _entry_kind text[], _entry text[], _event text[], _input boolean[],
    _message text[], _unread_limit bigint[],
    _start_name text[] = NULL, _start text[] = NULL, _start_generation text[] = NULL, _start_version text[] = NULL,
    _start_journal bigint[] = NULL, _start_about text[] = NULL,
    _answer text[] = NULL, _answer_kind text[] = NULL, _drops boolean[] = NULL, _closes boolean[] = NULL,
    _round bigint[] = NULL, _rounds bigint = 1, _journal bigint[] = NULL,
    OUT places bigint[], OUT outcomes text[], OUT seqs bigint[], OUT journal_ids bigint[], OUT created boolean[],
    OUT unparked boolean[], OUT holders text[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    bounds bigint[] := '{}';
    is_plain boolean; -- an input that is neither an answer nor an interrupt
BEGIN
    FOR k IN 1 .. cardinality(_session) LOOP
        is_plain := false;
        IF _input[k] IS NOT TRUE THEN
            IF jsonb_typeof(read_client_json(_entry[k])) IS DISTINCT FROM 'object' THEN
                PERFORM deny_client('append an entry that is no JSON object');
            ELSIF NOT has_fields(read_client_json(_entry[k]), '{"kind": "string", "status": "string", "reason": "string",
                    "retry_after": "null"}')
               OR (_entry_kind[k] = 'conversation.status_changed' AND _answer[k] IS NULL
                   AND CASE read_client_json(_entry[k]) ->> 'status'
                       WHEN 'running' THEN (_closes[k] OR _drops[k]) IS NOT TRUE
                       WHEN 'terminated' THEN _closes[k] AND _drops[k] END) IS NOT TRUE THEN
                PERFORM deny_client('append an entry that only wakes write');
            END IF;
        ELSE
            PERFORM check_client_entry(
                _session[k], _entry_kind[k], _entry[k], _event[k], _answer[k], _answer_kind[k], _drops[k]);
            IF _closes[k] THEN
                PERFORM deny_client('close a conversation with an input');
            END IF;
            is_plain := _answer[k] IS NULL AND _drops[k] IS NOT TRUE;
        END IF;
        bounds := bounds || CASE WHEN is_plain THEN least(_unread_limit[k], 10000) ELSE _unread_limit[k] END;
        PERFORM check_client_messages(ARRAY[replace(replace(_message[k], '"$SEQ"', '0'), '"$PARKED"', 'true')]);
        IF _start_about[k] IS NOT NULL THEN
            PERFORM check_client_description(read_client_json(_start_about[k]));
        END IF;
    END LOOP;
    PERFORM check_client_ids(_session || _kind || _start_generation);
    PERFORM check_client_starts(_start, _start_name, _start_version);
    SELECT a.places, a.outcomes, a.seqs, a.journal_ids, a.created, a.unparked, a.holders
    INTO places, outcomes, seqs, journal_ids, created, unparked, holders
    FROM append_journals(_session, _kind, _entry_kind, _entry, _event, array_fill(NULL::text, ARRAY[cardinality(_session)]),
        _input, _message, bounds, _start_name, _start, _start_generation, _start_version, _start_journal,
        _start_about => _start_about, _answer => _answer, _answer_kind => _answer_kind, _drops => _drops, _closes => _closes,
        _round => _round, _rounds => _rounds, _journal => _journal) a;
END $$;

-- Appends one input as `append_input` does.
CREATE FUNCTION client_append_input(
    _session text, _kind text, _entry_kind text, _entry text, _event text, _message text, _unread_limit bigint,
    OUT outcome text, OUT seq bigint, OUT journal bigint, OUT unparked boolean, OUT holder text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM check_client_entry(_session, _entry_kind, _entry, _event);
    PERFORM check_client_messages(ARRAY[replace(replace(_message, '"$SEQ"', '0'), '"$PARKED"', 'true')]);
    SELECT a.outcome, a.seq, a.journal, a.unparked, a.holder INTO outcome, seq, journal, unparked, holder
    FROM append_input(_session, _kind, _entry_kind, _entry, _event, _message, least(_unread_limit, 10000)) a;
END $$;

-- Creates a journal as `create_journal` does. The quotas apply; the state of a session is copied from another one, or there is
-- none; entries are inputs of clients, and requests are copied from the journal that the new one continues.
CREATE FUNCTION client_create_journal(_creation jsonb, OUT outcome text, OUT created_id bigint, OUT created_seq bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF _creation ? 'state' THEN
        PERFORM deny_client('write the state of a session');
    ELSIF _creation ->> 'parent' IS NOT NULL OR jsonb_array_length(_creation -> 'wakes') > 0
       OR (_creation ->> 'processed')::bigint > 0 OR jsonb_array_length(_creation -> 'revisits') > 0
       OR EXISTS (
           SELECT FROM jsonb_array_elements(nullif(_creation -> 'requests', 'null')) AS r (request)
           WHERE r.request ->> 6 IS NOT NULL) THEN
        PERFORM deny_client('write what only wakes write');
    ELSIF EXISTS (
        SELECT FROM journals j
        WHERE j.journal_id = ANY (creation_parents(_creation) || ARRAY[
            (_creation ->> 'base_id')::bigint, (_creation ->> 'merged_id')::bigint]) AND j.kind <> _creation ->> 'kind') THEN
        PERFORM deny_client('make a conversation from one of another kind');
    END IF;
    PERFORM check_client_ids(ARRAY[_creation ->> 'session_id', _creation ->> 'kind', _creation ->> 'generation',
        _creation ->> 'home']);
    PERFORM check_client_starts(
        ARRAY[_creation ->> 'start'], ARRAY[_creation ->> 'name'], ARRAY[_creation ->> 'version']);
    IF _creation ->> 'message' IS NOT NULL THEN
        PERFORM check_client_messages(ARRAY[replace(_creation ->> 'message', '"$SEQ"', '0')]);
    END IF;
    IF _creation ->> 'about' IS NOT NULL THEN
        PERFORM check_client_description(_creation -> 'about');
    END IF;
    IF jsonb_typeof(read_client_json(_creation ->> 'extras')) <> 'object' OR octet_length(_creation ->> 'operator') > 256 THEN
        PERFORM deny_client('write a lineage that cannot be read');
    END IF;
    IF EXISTS (
        SELECT FROM jsonb_array_elements(_creation -> 'entries') AS e (entry)
        WHERE e.entry ->> 3 IS NOT NULL OR e.entry ->> 5 IS NOT NULL) THEN
        PERFORM deny_client('append an entry that only wakes write');
    END IF;
    PERFORM check_client_entry(NULL, e.entry ->> 0, e.entry ->> 1, e.entry ->> 2)
    FROM jsonb_array_elements(_creation -> 'entries') AS e (entry);
    IF EXISTS (
        SELECT FROM jsonb_array_elements(nullif(_creation -> 'requests', 'null')) AS r (request)
        WHERE NOT EXISTS (
            SELECT FROM journal_segments((_creation ->> 'base_id')::bigint) s JOIN journal_entries e USING (journal_id)
            WHERE e.seq > s.low AND e.seq <= s.high AND e.kind = r.request ->> 1 AND e.payload = r.request ->> 2
              AND e.wake_id IS NOT DISTINCT FROM r.request ->> 3
              AND read_client_json(e.payload) ->> 'request_id' = r.request ->> 0)) THEN
        PERFORM deny_client('make a request');
    END IF;
    SELECT b.* INTO outcome, created_id, created_seq FROM create_journal(_creation - 'of_wake') b;
END $$;

-- Changes title, owner and labels of a journal, as far as `_changes` has them. False: the session has no journal of this kind.
CREATE FUNCTION describe_journal(_session text, _kind text, _changes jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM check_client_description(_changes);
    UPDATE journals j
    SET title = CASE WHEN _changes ? 'title' THEN _changes ->> 'title' ELSE j.title END,
        owner = CASE WHEN _changes ? 'owner' THEN _changes ->> 'owner' ELSE j.owner END,
        labels = coalesce(_changes -> 'labels', j.labels), updated_at = clock()
    WHERE j.session_id = _session AND j.kind = _kind;
    RETURN FOUND;
END $$;
