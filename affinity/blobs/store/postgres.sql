-- begin_round: one caller at a time
INSERT INTO blob_rounds AS r (part, due_at) VALUES (1, (SELECT clock()) + %(pause)s * interval '1 s')
ON CONFLICT (part) DO UPDATE SET due_at = excluded.due_at WHERE r.due_at <= (SELECT clock())
RETURNING part

-- condemn: blobs that are to be deleted
INSERT INTO condemned_blobs (digest, condemned_at)
SELECT d.digest, (SELECT clock()) FROM unnest(%(digests)s::text[]) AS d (digest) ORDER BY d.digest
ON CONFLICT (digest) DO NOTHING

-- condemned: of these
SELECT c.digest FROM condemned_blobs c WHERE c.digest = ANY (%(digests)s::text[])

-- left_condemned: by a collection that was killed
SELECT c.digest FROM condemned_blobs c WHERE c.condemned_at < (SELECT clock()) - interval '1 hour'
ORDER BY c.digest LIMIT 10000

-- forgive: what was deleted, or is in use
WITH forgotten AS (DELETE FROM orphan_blobs o WHERE o.digest = ANY (%(digests)s::text[]))
DELETE FROM condemned_blobs c WHERE c.digest = ANY (%(digests)s::text[])

-- note_orphans: that no row named them; one that was used since has a new time
INSERT INTO orphan_blobs AS o (digest, used_at, size, found_at)
SELECT b.digest, b.used_at, b.size, (SELECT clock())
FROM unnest(%(digests)s::text[], %(used_at)s::text[], %(size)s::bigint[]) AS b (digest, used_at, size)
ORDER BY b.digest
ON CONFLICT (digest) DO UPDATE SET used_at = excluded.used_at, size = excluded.size, found_at = excluded.found_at
WHERE o.used_at <> excluded.used_at

-- old_orphans: found long ago, the first ones
SELECT o.digest, o.used_at, o.size FROM orphan_blobs o
WHERE o.found_at <= (SELECT clock()) - %(grace)s * interval '1 s' ORDER BY o.found_at, o.digest LIMIT %(limit)s

-- measure: what waits for its deletion
SELECT count(*), coalesce(sum(o.size), 0)::bigint, (EXTRACT(epoch FROM (SELECT clock()) - min(o.found_at)))::float8,
    (SELECT count(*) FROM condemned_blobs)
FROM orphan_blobs o

-- keep_exported: by a function, which clients may call
SELECT keep_exported_blobs(%(digests)s::text[])

-- forget_exported: old ones
WITH removed AS (
    DELETE FROM exported_blobs e WHERE e.exported_at < (SELECT clock()) - %(older_than)s * interval '1 s' RETURNING 1
)
SELECT count(*) FROM removed
