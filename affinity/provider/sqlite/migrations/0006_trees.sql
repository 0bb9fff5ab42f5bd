-- parent_birth: of the parent as it was when it created the instance. on_deleted: sent to that parent when the instance is
-- deleted before it has ended. unread: messages that its turns have consumed and its code has not read.
ALTER TABLE instances ADD COLUMN parent_birth TEXT;
ALTER TABLE instances ADD COLUMN on_deleted TEXT;
ALTER TABLE instances ADD COLUMN unread INTEGER NOT NULL DEFAULT 0;
