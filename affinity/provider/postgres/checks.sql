-- facts: what the server, the database and the role are, from the catalogues alone
SELECT
    current_setting('server_version_num')::int AS version_number,
    split_part(current_setting('server_version'), ' ', 1) AS version,
    current_setting('server_encoding') AS encoding,
    pg_is_in_recovery() AS is_standby,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') <> '' AS has_synchronous_standby,
    least(
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
            - coalesce(current_setting('reserved_connections', true), '0')::int,
        (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()),
        (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = session_user)
    ) AS connections,
    -- Of the sessions of other roles these columns are visible to all.
    (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL AND usesysid IS NOT NULL)::int AS connected,
    current_setting('autovacuum') = 'on' AND current_setting('track_counts') = 'on' AS has_autovacuum,
    (SELECT setting::int FROM pg_settings WHERE name = 'autovacuum_naptime') AS autovacuum_naptime,
    -- Not as this connection has set it.
    (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation') AS isolation,
    current_user::text AS role,
    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS is_superuser,
    n.oid IS NOT NULL AS has_schema,
    coalesce(pg_has_role(n.nspowner, 'USAGE'), false) AS is_owner,
    has_database_privilege(current_database(), 'CREATE') AS may_create,
    coalesce((
        SELECT bool_and(coalesce(has_function_privilege(
            coalesce(n.nspowner, (SELECT oid FROM pg_roles WHERE rolname = current_user)), to_regprocedure(f)::oid, 'EXECUTE'
        ), false))
        FROM unnest(ARRAY[
            'pg_control_system()', 'pg_current_wal_lsn()', 'pg_current_wal_flush_lsn()', 'pg_walfile_name(pg_lsn)'
        ]) f
    ), false) AS shows_timeline,
    coalesce(current_setting(%(marker)s, true) = %(kept)s, false) AS keeps_settings,
    pg_backend_pid() AS pid,
    extract(epoch FROM clock_timestamp())::float8 AS clock
FROM (VALUES (1)) one LEFT JOIN pg_namespace n ON n.nspname = %(schema)s

-- place: which database this is, for two connections at the same time
SELECT extract(epoch FROM pg_postmaster_start_time())::text, oid::text FROM pg_database WHERE datname = current_database()

-- missing: of the privileges that kinds of roles have, those that this role lacks
SELECT w.role_kind, w.name, w.privilege
FROM unnest(%(role_kinds)s::text[], %(kinds)s::text[], %(names)s::text[], %(privileges)s::text[])
    AS w (role_kind, kind, name, privilege)
LEFT JOIN (
    SELECT 'SCHEMA' AS kind, '' AS name, oid FROM pg_namespace WHERE nspname = %(schema)s
    UNION ALL
    SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, relname, oid
    FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s) AND relkind IN ('r', 'p', 'v', 'm', 'S')
    UNION ALL
    SELECT 'FUNCTION', proname, oid FROM pg_proc WHERE pronamespace = to_regnamespace(%(schema)s)
) o USING (kind, name)
GROUP BY w.role_kind, w.name, w.privilege
HAVING bool_and(CASE w.kind
    WHEN 'SCHEMA' THEN has_schema_privilege(o.oid, w.privilege)
    WHEN 'TABLE' THEN has_table_privilege(o.oid, w.privilege)
    WHEN 'SEQUENCE' THEN has_sequence_privilege(o.oid, w.privilege)
    ELSE has_function_privilege(o.oid, w.privilege)
END) IS NOT TRUE
ORDER BY w.role_kind, w.name, w.privilege
