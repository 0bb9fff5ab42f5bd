-- Which database this is, and which line of its history: see affinity/provider/timeline.py. One row. Each registration
-- and renewal of a worker adds one to `reached`: a backup that is restored is behind what a worker saw.
CREATE TABLE timeline (
    token   TEXT NOT NULL,
    reached INTEGER NOT NULL
) STRICT;

INSERT INTO timeline VALUES (lower(hex(randomblob(16))), 0);
