-- Migrations from this one on. `schema_versions` states the oldest code that may use the schema: see
-- affinity/provider/schema.py.
CREATE TABLE applied_migrations (
    version integer PRIMARY KEY,
    release text COLLATE "C" NOT NULL, -- of affinity, that applied it
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Read by each role that opens the database, also by those that were given their rights before there was this table.
GRANT SELECT ON applied_migrations TO PUBLIC;
