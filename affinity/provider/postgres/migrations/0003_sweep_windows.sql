-- Where the last sweep stopped. A sweep looks at a part of the queued sessions and of the session rows, and the next one,
-- whoever runs it, goes on from there: what a second costs does not grow with how many there are. '' is the beginning.
ALTER TABLE sweeps
    ADD COLUMN queued_session text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN queued_route text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN session text COLLATE "C" NOT NULL DEFAULT '';
