-- Children know the journal of their parent, and not its name alone: see `JournalPage.parent_journal`.
ALTER TABLE journals ADD COLUMN parent_journal INTEGER;
