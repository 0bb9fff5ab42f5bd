-- begin_round: one caller at a time
INSERT INTO blob_rounds (part, due_at) VALUES (1, :now + :pause)
ON CONFLICT (part) DO UPDATE SET due_at = excluded.due_at WHERE due_at <= :now;

-- condemn: blobs that are to be deleted
INSERT INTO condemned_blobs (digest, condemned_at) SELECT value, :now FROM json_each(:digests) WHERE true
ON CONFLICT (digest) DO NOTHING;

-- condemned: of these
SELECT digest FROM condemned_blobs WHERE digest IN (SELECT value FROM json_each(:digests));

-- left_condemned: by a collection that was killed
SELECT digest FROM condemned_blobs WHERE condemned_at < :now - 3600 ORDER BY digest LIMIT 10000;

-- forgive: what was deleted, or is in use
DELETE FROM condemned_blobs WHERE digest IN (SELECT value FROM json_each(:digests));

-- forget_orphans: likewise
DELETE FROM orphan_blobs WHERE digest IN (SELECT value FROM json_each(:digests));

-- note_orphans: that no row named them; one that was used since has a new time
INSERT INTO orphan_blobs (digest, used_at, size, found_at)
SELECT value ->> 0, value ->> 1, value ->> 2, :now FROM json_each(:rows) WHERE true
ON CONFLICT (digest) DO UPDATE SET used_at = excluded.used_at, size = excluded.size, found_at = excluded.found_at
WHERE orphan_blobs.used_at <> excluded.used_at;

-- old_orphans: found long ago, the first ones
SELECT digest, used_at, size FROM orphan_blobs WHERE found_at <= :now - :grace ORDER BY found_at, digest LIMIT :limit;

-- measure: what waits for its deletion
SELECT count(*), coalesce(sum(size), 0), :now - min(found_at), (SELECT count(*) FROM condemned_blobs) FROM orphan_blobs;

-- keep_exported: with the mark that the collection looks for
INSERT INTO exported_blobs (digest, exported_at)
SELECT 'affinity-blob:1:' || value || ':0', :now FROM json_each(:digests) WHERE true
ON CONFLICT (digest) DO UPDATE SET exported_at = excluded.exported_at;

-- forget_exported: old ones
DELETE FROM exported_blobs WHERE exported_at < :now - :older_than;
