-- Which code a worker runs, and since when this version is deployed. NULL: a release that says nothing registered it.
ALTER TABLE workers
    ADD COLUMN app text COLLATE "C",
    ADD COLUMN code_version text COLLATE "C",
    ADD COLUMN code_since timestamptz;

CREATE OR REPLACE VIEW alive_workers AS
SELECT worker_id, incarnation, draining, code_version FROM workers WHERE locked_until > clock();

-- Since when the version is deployed that a worker registers: as long as others run it, or as it ran it before itself. A
-- worker that changes from one version to another shows which of them is the newer: also an older one, rolled back to.
CREATE FUNCTION version_since(_worker text, _app text, _version text) RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN _version IS NULL THEN NULL
                WHEN known.since > coalesce(former.since, '-infinity') THEN known.since ELSE clock() END
    FROM (
        SELECT max(w.code_since) AS since FROM workers w
        WHERE w.app = _app AND w.code_version = _version AND (w.worker_id = _worker OR w.locked_until > clock())
    ) known LEFT JOIN (
        SELECT w.code_since AS since FROM workers w
        WHERE w.worker_id = _worker AND w.app = _app AND w.code_version <> _version
    ) former ON true
$$;

-- For a worker that does not run the newest version of its app that live workers run: those that do, and how many more
-- sessions each may hold.
CREATE VIEW newer_workers AS
SELECT me.worker_id AS newer_than, n.worker_id, n.capacity - held.sessions AS room
FROM workers me
CROSS JOIN LATERAL (
    SELECT w.code_version, w.code_since FROM workers w
    WHERE w.app = me.app AND w.code_version IS NOT NULL AND w.locked_until > clock() AND NOT w.draining
    ORDER BY w.code_since DESC, w.code_version LIMIT 1
) newest
JOIN workers n ON n.app = me.app AND n.code_version = newest.code_version AND n.locked_until > clock() AND NOT n.draining
CROSS JOIN LATERAL (
    SELECT count(*) AS sessions FROM sessions s
    WHERE s.worker_id = n.worker_id AND s.incarnation = n.incarnation AND s.locked_until > clock()
) held
WHERE newest.code_version <> me.code_version AND newest.code_since > me.code_since;

-- Whether a worker leaves new and freed sessions to workers of newer code. A function, so that a fetch plans and reads none
-- of this while all workers run one version.
CREATE FUNCTION is_outdated(_worker text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM newer_workers n WHERE n.newer_than = _worker AND n.room > 0);
END $$;
