-- Each record has a birth token, too: versions begin again with a record that is deleted and made anew. Those that are
-- here have '', as no later one has. In two steps: a default that differs from row to row would write all of them anew.
ALTER TABLE session_states ADD COLUMN birth text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE session_states ALTER COLUMN birth SET DEFAULT gen_random_uuid()::text;
