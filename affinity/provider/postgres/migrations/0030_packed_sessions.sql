-- Whether a worker of the same set and code, with a lower ordinal, has room for a session. Names of one set differ in the
-- number at their end: among them a longer name has the greater number. A worker whose capacity is not told is passed over.
-- A function, so that a fetch plans and reads none of this unless it packs.
CREATE FUNCTION lower_worker_has_room(_worker text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM workers me JOIN workers w
            ON rtrim(w.worker_id, '0123456789') = rtrim(me.worker_id, '0123456789')
            AND (length(w.worker_id), w.worker_id) < (length(me.worker_id), me.worker_id)
            AND w.code_version IS NOT DISTINCT FROM me.code_version
        WHERE me.worker_id = _worker AND w.locked_until > clock() AND NOT w.draining
          AND w.capacity > (
              SELECT count(*) FROM sessions s
              WHERE s.worker_id = w.worker_id AND s.incarnation = w.incarnation AND s.locked_until > clock()));
END $$;
