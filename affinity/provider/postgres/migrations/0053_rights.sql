-- Rights of roles: see affinity/provider/postgres/rights.py. Each migration gives them, and takes EXECUTE from PUBLIC.
-- oldest code: 50

-- Autoscalers are remembered too.
ALTER TABLE granted_roles DROP CONSTRAINT granted_roles_kind_check;
ALTER TABLE granted_roles ADD CONSTRAINT granted_roles_kind_check CHECK (kind IN ('client', 'worker', 'scaler'));

REVOKE SELECT ON applied_migrations FROM PUBLIC;

-- What each connection of a client asks first. A timeline begins here only where the server itself is another one:
-- learn_timeline, to which a number is given, is for workers.
CREATE FUNCTION establish_timeline(OUT current_token text, OUT reached bigint) LANGUAGE sql VOLATILE SECURITY DEFINER AS $$
    SELECT t.current_token, t.reached FROM learn_timeline(NULL, 0) t
$$;

-- That of clients: the quotas apply, and the state of a session is copied from another one, or there is none.
CREATE OR REPLACE FUNCTION bear_journal_1(_birth jsonb, OUT outcome text, OUT born_id bigint, OUT born_seq bigint)
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF _birth ? 'state' THEN
        RAISE insufficient_privilege USING MESSAGE = 'bear_journal_1 takes no state';
    END IF;
    SELECT b.* INTO outcome, born_id, born_seq FROM bear_journal_2(_birth - 'of_wake') b;
END $$;

-- Functions that name their search path name the schema of temporary tables last: it comes first where it is not named,
-- and a trigger may run with the rights of the role that migrated.
DO $do$
DECLARE
    function regprocedure;
BEGIN
    FOR function IN
        SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = current_schema::regnamespace
          AND (p.prosecdef OR EXISTS (SELECT FROM unnest(p.proconfig) AS c (setting) WHERE c.setting LIKE 'search_path=%'))
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', function, current_schema);
    END LOOP;
END $do$;
