-- Lineage of journals: see `JournalBirth` in affinity/journal.py.

-- home: the session on whose lease the wakes run; NULL: its own. lineage, operator, extras: how it was made from others.
ALTER TABLE journals ADD COLUMN home TEXT;
ALTER TABLE journals ADD COLUMN lineage TEXT;
ALTER TABLE journals ADD COLUMN operator TEXT NOT NULL DEFAULT '';
ALTER TABLE journals ADD COLUMN extras TEXT NOT NULL DEFAULT '{}';

-- A journal that others name here is kept, without its entries, when it is deleted: the way to its own parents.
CREATE TABLE journal_parents (
    journal_id INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    parent_id  INTEGER NOT NULL,
    PRIMARY KEY (journal_id, position)
) STRICT, WITHOUT ROWID;

CREATE INDEX journal_parents_by_parent ON journal_parents (parent_id);

-- The entry that a merge has copied.
ALTER TABLE journal_entries ADD COLUMN origin_id INTEGER;
ALTER TABLE journal_entries ADD COLUMN origin_seq INTEGER;

CREATE INDEX journal_entries_by_origin ON journal_entries (origin_id, origin_seq) WHERE origin_id IS NOT NULL;
