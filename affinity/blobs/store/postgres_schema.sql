-- The collection of blobs: large payloads, which are kept outside the database.

-- Blobs that are to be deleted. A writer that finds its blob here stores it anew.
CREATE TABLE condemned_blobs (
    digest text COLLATE "C" PRIMARY KEY CHECK (length(digest) = 64),
    condemned_at timestamptz NOT NULL
);

-- Blobs that no row named when a collection looked. Later ones delete those that are as they were for long enough.
CREATE TABLE orphan_blobs (
    digest text COLLATE "C" PRIMARY KEY CHECK (length(digest) = 64),
    used_at text NOT NULL, -- as the store said it: opaque
    size bigint NOT NULL, -- bytes
    found_at timestamptz NOT NULL
);
CREATE INDEX orphan_blobs_found_at ON orphan_blobs (found_at);

-- When the next collection may begin. One row at most.
CREATE TABLE blob_rounds (
    part integer PRIMARY KEY CHECK (part = 1),
    due_at timestamptz NOT NULL
);

-- Blobs that an export names. The mark is as in payloads, so that the collection finds it.
CREATE TABLE exported_blobs (
    digest text COLLATE "C" PRIMARY KEY CHECK (octet_length(digest) <= 128),
    exported_at timestamptz NOT NULL
);
CREATE INDEX exported_blobs_age ON exported_blobs (exported_at);

-- Clients keep what they export, and remove nothing.
CREATE FUNCTION keep_exported_blobs(_digests text[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    INSERT INTO exported_blobs (digest, exported_at)
    SELECT DISTINCT 'affinity-blob:1:' || d.digest || ':0', (SELECT clock()) FROM unnest(_digests) AS d (digest)
    WHERE d.digest ~ '^[0-9a-f]{64}$' ORDER BY 1
    ON CONFLICT (digest) DO UPDATE SET exported_at = excluded.exported_at
$$;
