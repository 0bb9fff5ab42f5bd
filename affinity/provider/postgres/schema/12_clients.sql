-- Writes of clients. A client's role has no right to write to a table: it calls these functions, which run with the
-- owner's rights. Each function checks all its arguments, so the right to call it allows nothing that a client may not
-- do: the library's checks do not exist for a role of the database. The functions without a check that they call are
-- for workers.

-- Refuses an argument that a client may not pass.
CREATE FUNCTION deny_client(_what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE insufficient_privilege USING MESSAGE = 'affinity: a client may not ' || _what;
END $$;

-- Refuses texts that are not valid ids (`check_id` in affinity/limits.py); NULLs pass.
CREATE FUNCTION check_client_ids(_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM unnest(_ids) AS i (id) WHERE octet_length(i.id) NOT BETWEEN 1 AND 256 OR i.id ~ '[\u0001-\u001f\u007f-\u009f]')
    THEN
        PERFORM deny_client('use an empty id, one of more than 256 bytes, or one with control characters');
    END IF;
END $$;

-- Parses a JSON text. Refuses a text that a worker could not read: not JSON, too large, nested too deep, or with a
-- number of thousands of digits. A NUL in it, which jsonb cannot hold, is read as another control character.
CREATE FUNCTION read_client_json(_text text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    document jsonb;
BEGIN
    IF octet_length(_text) > 3145728 THEN -- `MAX_PAYLOAD_BYTES`, and the JSON around the payload
        PERFORM deny_client('send a payload of more than 3 MiB');
    END IF;
    document := replace(_text, '\u0000', '\u0001')::jsonb;
    IF octet_length(_text) > 180 AND jsonb_path_exists(document, 'strict $.**{186}')
       OR octet_length(_text) > 4000
          AND jsonb_path_exists(document, 'strict $.** ? (@.type() == "number" && (@ >= 1e4000 || @ <= -1e4000))') THEN
        PERFORM deny_client('send JSON that no worker can read');
    END IF;
    RETURN document;
END $$;

-- True if a JSON value is headers that a worker can read (`check_headers` in affinity/headers.py).
CREATE FUNCTION are_headers(_value jsonb) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF jsonb_typeof(_value) IS DISTINCT FROM 'object' THEN
        RETURN false;
    END IF;
    RETURN (
        SELECT count(*) <= 32 AND coalesce(sum(octet_length(h.name) + octet_length(h.value #>> '{}')), 0) <= 4096
               AND coalesce(bool_and(jsonb_typeof(h.value) = 'string' AND h.name ~ '^[A-Za-z0-9_.-]{1,64}$'
                    AND h.value #>> '{}' !~ '[\u0001-\u001f\u007f-\u009f]'), true)
        FROM jsonb_each(_value) AS h (name, value));
END $$;

-- True if all fields of a JSON object are among these, each of its type; false if it is not an object. The type '*' is
-- any type, and 'headers' is headers.
CREATE FUNCTION has_fields(_document jsonb, _types jsonb) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF jsonb_typeof(_document) IS DISTINCT FROM 'object' THEN
        RETURN false;
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM jsonb_each(_document) AS f (name, value)
        WHERE (_types ->> f.name IN ('*', jsonb_typeof(f.value))) IS NOT TRUE
          AND (_types ->> f.name = 'headers' AND are_headers(f.value)) IS NOT TRUE);
END $$;

-- The event in a message to the current execution of an instance, without anything beside it.
CREATE FUNCTION read_client_message(_payload text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    message jsonb := read_client_json(_payload);
BEGIN
    IF jsonb_typeof(message) IS DISTINCT FROM 'object' THEN
        PERFORM deny_client('send a message that is no JSON object with an execution and an event');
    ELSIF NOT has_fields(message, '{"execution": "number", "event": "object"}') OR message ->> 'execution' IS DISTINCT FROM '0' THEN
        PERFORM deny_client('send a message that is not to the current execution, or has more than an event');
    END IF;
    RETURN message -> 'event';
END $$;

-- Refuses labels but an object of at most 32 valid ids by valid ids (`check_labels` in affinity/limits.py).
CREATE FUNCTION check_client_labels(_labels jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(_labels) IS DISTINCT FROM 'object'
       OR (SELECT count(*) > 32 OR bool_or(jsonb_typeof(l.value) <> 'string') FROM jsonb_each(_labels) AS l) THEN
        PERFORM deny_client('label an instance with more than 32 labels, or with a value that is no text');
    END IF;
    PERFORM check_client_ids(ARRAY (SELECT unnest(ARRAY[l.key, l.value]) FROM jsonb_each_text(_labels) AS l));
END $$;

-- Refuses starts but plain ones: without a parent, which would receive the result, or events of a former execution. The labels of
-- an instance are those of its start message.
CREATE FUNCTION check_client_starts(_start text[], _name text[], _version text[], _labels text[] = NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    event jsonb;
BEGIN
    FOR k IN 1 .. coalesce(cardinality(_name), 0) LOOP
        CONTINUE WHEN _name[k] IS NULL AND _start[k] IS NULL; -- of an append that starts nothing
        event := read_client_message(_start[k]);
        IF NOT has_fields(event, '{"type": "string", "name": "string", "version": "string", "input": "*",
                "scheduled_for": "number", "labels": "object", "headers": "headers", "trace": "string"}')
           OR (event ->> 'type' = 'orchestration_started' AND event ->> 'name' = _name[k]
               AND event ->> 'version' = coalesce(_version[k], '') AND event ? 'input') IS NOT TRUE THEN
            PERFORM deny_client('start an instance with a message that is no plain start of it');
        END IF;
        IF event ? 'labels' OR _labels[k] IS NOT NULL THEN
            PERFORM check_client_labels(event -> 'labels');
            IF read_client_json(_labels[k]) IS DISTINCT FROM event -> 'labels' THEN
                PERFORM deny_client('start an instance with other labels than its start message has');
            END IF;
        END IF;
    END LOOP;
    PERFORM check_client_ids(_name || _version);
END $$;

-- Refuses messages but external events, of names that are not reserved, and requests to cancel. Returns whether each is an event.
CREATE FUNCTION check_client_messages(_payload text[]) RETURNS boolean[] LANGUAGE plpgsql AS $$
DECLARE
    event jsonb;
    are_events boolean[] := '{}';
BEGIN
    FOR k IN 1 .. coalesce(cardinality(_payload), 0) LOOP
        event := read_client_message(_payload[k]);
        IF event ->> 'type' = 'event_raised' AND event ? 'name' AND event ? 'data'
           AND has_fields(event, '{"type": "string", "name": "string", "data": "*", "key": "string",
                "headers": "headers", "trace": "string", "asked": "boolean"}') AND NOT starts_with(event ->> 'name', 'affinity:') THEN
            PERFORM check_client_ids(ARRAY[event ->> 'name', event ->> 'key']);
        ELSIF event ->> 'type' IS DISTINCT FROM 'cancel_requested' OR NOT event ? 'reason'
           OR NOT has_fields(event, '{"type": "string", "reason": "string"}') THEN
            PERFORM deny_client('send a message that is neither an external event nor a request to cancel');
        END IF;
        are_events := are_events || (event ->> 'type' = 'event_raised');
    END LOOP;
    RETURN are_events;
END $$;

-- Starts and messages.

-- Refuses gates that no worker could read; returns for each whether it has limits, and the head start of its priority.
-- See affinity/orchestration/gates.py.
CREATE FUNCTION read_client_gates(_gate text[], OUT limited boolean[], OUT head_start float8[]) LANGUAGE plpgsql AS $$
DECLARE
    gate jsonb;
BEGIN
    FOR k IN 1 .. coalesce(cardinality(_gate), 0) LOOP
        IF _gate[k] IS NOT NULL THEN
            gate := read_client_json(_gate[k]);
            IF jsonb_typeof(gate) IS DISTINCT FROM 'array' OR (
                jsonb_typeof(gate -> 0) = 'number' AND jsonb_array_length(gate) BETWEEN 1 AND 9
                AND (gate ->> 0)::numeric BETWEEN 0 AND 1000 AND (gate ->> 0)::numeric % 1 = 0
                AND (SELECT count(*) = count(DISTINCT (use -> 0, use -> 1)) FROM jsonb_array_elements(gate - 0) AS u (use))
                AND NOT EXISTS (
                    SELECT FROM jsonb_array_elements(gate) WITH ORDINALITY AS u (use, n)
                    WHERE n > 1 AND (
                        jsonb_typeof(use) = 'array' AND jsonb_array_length(use) = 4
                        AND jsonb_typeof(use -> 0) = 'string' AND jsonb_typeof(use -> 1) = 'string'
                        AND octet_length(use ->> 0) BETWEEN 1 AND 256 AND octet_length(use ->> 1) <= 256
                        AND jsonb_typeof(use -> 2) = 'number' AND jsonb_typeof(use -> 3) = 'number'
                        AND (use ->> 2)::numeric BETWEEN 0 AND 2147483647 AND (use ->> 2)::numeric % 1 = 0
                        AND (use ->> 3)::numeric BETWEEN 0.001 AND 1000) IS NOT TRUE)
            ) IS NOT TRUE THEN
                PERFORM deny_client('start an instance with a gate that no worker can read');
            END IF;
        END IF;
        limited := limited || CASE WHEN _gate[k] IS NOT NULL THEN jsonb_array_length(gate) > 1 END;
        head_start := head_start || CASE WHEN _gate[k] IS NOT NULL THEN (gate ->> 0)::float8 * 3600 END;
    END LOOP;
END $$;

-- Creates instances as `create_instances` does, without parents.
CREATE FUNCTION client_create_instances(
    _instance text[], _generation text[], _name text[], _version text[], _start text[], _delay float8[], _session text[],
    _gate text[] = NULL, _not_before float8[] = NULL, _labels text[] = NULL
) RETURNS TABLE (n bigint, quota text, allowed bigint) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM check_client_ids(_instance || _generation || _session);
    PERFORM check_client_starts(_start, _name, _version, _labels);
    RETURN QUERY SELECT c.n, c.quota, c.allowed FROM create_instances(
        _instance, _generation, _name, _version, _start, _delay => _delay, _session => _session, _gate => _gate,
        _limited => (read_client_gates(_gate)).limited, _head_start => (read_client_gates(_gate)).head_start,
        _not_before => _not_before, _labels => _labels) c;
END $$;

-- Restarts ended instances as `restart_instances` does.
CREATE FUNCTION client_restart_instances(
    _instance text[], _ended text[], _generation text[], _name text[], _version text[], _start text[], _session text[],
    _gate text[] = NULL, _delay float8[] = NULL, _not_before float8[] = NULL, _when text[] = NULL, _within float8[] = NULL,
    _cancel text[] = NULL, _labels text[] = NULL
) RETURNS TABLE (n bigint, quota text, allowed bigint) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM check_client_ids(_generation || _session);
    PERFORM check_client_starts(_start, _name, _version, _labels);
    IF true = ANY (check_client_messages(array_remove(_cancel, NULL))) THEN
        PERFORM deny_client('send an event in place of a request to cancel');
    END IF;
    RETURN QUERY SELECT r.n, r.quota, r.allowed FROM restart_instances(
        _instance, _ended, _generation, _name, _version, _start, _session, _gate, (read_client_gates(_gate)).limited,
        (read_client_gates(_gate)).head_start, _delay, _not_before, _when, _within, _cancel, _labels) r;
END $$;

-- Sends messages as `send_messages` does, some with a key. The bound on unread events applies to each event.
CREATE FUNCTION client_send_messages(
    _instance text[], _generation text[], _payload text[], _unread_limit bigint[], _key text[]
) RETURNS TABLE (n bigint, delivery text) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    are_events boolean[] := check_client_messages(_payload);
    -- A request to cancel ends the wait of an instance that has not started.
    are_cancels boolean[] := ARRAY (SELECT NOT e.is_event FROM unnest(are_events) WITH ORDINALITY AS e (is_event, k) ORDER BY e.k);
    bounds bigint[] := ARRAY (
        SELECT CASE WHEN e.is_event THEN least(_unread_limit[e.k], 10000) ELSE _unread_limit[e.k] END
        FROM unnest(are_events) WITH ORDINALITY AS e (is_event, k) ORDER BY e.k);
BEGIN
    PERFORM check_client_ids(_key);
    IF array_remove(_key, NULL) = '{}' THEN
        RETURN QUERY SELECT s.n, s.delivery FROM send_messages(
            _instance, _generation, _payload, _unread_limit => bounds, _ends_wait => are_cancels) s;
    ELSE
        RETURN QUERY SELECT s.n, s.delivery FROM send_keyed_messages(
            _instance, _generation, _payload, NULL, NULL, NULL, bounds, _key, are_cancels) s;
    END IF;
END $$;
