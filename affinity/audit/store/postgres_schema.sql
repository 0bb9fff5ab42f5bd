-- The audit log: who did what. `write_audit` writes the rows, and `remove_audit` removes old ones: no other role than the
-- owner can change a row.
CREATE TABLE audit (
    entry_id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL,
    stated_user text COLLATE "C" NOT NULL CHECK (octet_length(stated_user) <= 256), -- as the caller stated
    source text COLLATE "C" NOT NULL CHECK (octet_length(source) <= 256),
    role text COLLATE "C" NOT NULL, -- of the database
    action text COLLATE "C" NOT NULL CHECK (octet_length(action) <= 256),
    kind text COLLATE "C" NOT NULL CHECK (octet_length(kind) <= 256), -- of the target
    target text COLLATE "C" NOT NULL CHECK (octet_length(target) <= 1024),
    outcome text COLLATE "C" NOT NULL CHECK (octet_length(outcome) <= 256),
    succeeded boolean NOT NULL,
    details text NOT NULL CHECK (octet_length(details) <= 65536), -- JSON: names and reasons among the arguments
    PRIMARY KEY (at, entry_id)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX audit_user ON audit (stated_user, at, entry_id);
CREATE INDEX audit_action ON audit (action, at, entry_id);
CREATE INDEX audit_target ON audit (target, at, entry_id);
CREATE INDEX audit_source ON audit (source, at, entry_id);
CREATE INDEX audit_refused ON audit (at, entry_id) WHERE NOT succeeded;

-- Writes entries, in the transaction of the changes that they record. Runs with the owner's rights, but stores the caller's
-- roles: its login role, and the role that it has set.
CREATE FUNCTION write_audit(_entries json) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    INSERT INTO audit (at, stated_user, source, role, action, kind, target, outcome, succeeded, details)
    SELECT (SELECT clock()), e."user", e.source,
        concat_ws(' as ', session_user, nullif(nullif(current_setting('role'), 'none'), session_user)),
        e.action, e.kind, e.target, e.outcome, e.succeeded, e.details
    FROM json_to_recordset(_entries) AS e ("user" text, source text, action text, kind text, target text, outcome text,
        succeeded boolean, details text)
$$;

-- Writes the entries of a statement, in its transaction. `_expected` has each possible entry, with its targets from `first`
-- to `last`; `_places` and `_outcomes` list the targets on which something took effect.
CREATE FUNCTION write_effects(_expected json, _places bigint[], _outcomes text[]) RETURNS void LANGUAGE sql AS $$
    SELECT write_audit(json_agg(json_build_object('user', e."user", 'source', e.source, 'action', e.action, 'kind', e.kind,
        'target', e.target, 'details', e.details, 'succeeded', true, 'outcome', d.outcome) ORDER BY e.first, e.target))
    FROM json_to_recordset(_expected) AS e ("user" text, source text, action text, kind text, target text, details text,
        first bigint, last bigint)
    CROSS JOIN LATERAL (
        SELECT CASE WHEN e.first = e.last THEN min(o.outcome) ELSE count(*) || ' of ' || (e.last - e.first + 1) END AS outcome
        FROM unnest(_places, _outcomes) AS o (place, outcome) WHERE o.place BETWEEN e.first AND e.last
        HAVING count(*) > 0) d
$$;

-- Removes at most `_limit` entries that are older than `_older_than` seconds; returns their number. Entries of the last day
-- stay, so that no worker removes today's record. NULL: all stay.
CREATE FUNCTION remove_audit(_older_than float8, _limit bigint) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    WITH removed AS (
        DELETE FROM audit a WHERE a.ctid = ANY (ARRAY (
            SELECT o.ctid FROM audit o
            WHERE o.at < (SELECT clock() - greatest(_older_than, 86400) * interval '1 s') AND _older_than IS NOT NULL
            ORDER BY o.at, o.entry_id LIMIT _limit FOR UPDATE SKIP LOCKED))
        RETURNING 1
    )
    SELECT count(*) FROM removed
$$;
