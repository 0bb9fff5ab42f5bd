-- Journals of sessions: see affinity/conversation/journal.py.

-- session_id: NULL when it was deleted, and forks continue it. base_id, base_seq: the journal that it continues, after that
-- number. first_seq: the first entry that is kept; greater than last_seq without entries. size: bytes of the payloads of its
-- own entries. ended_wake, ended_attempt: the last attempt that has committed or was retracted; late parts of its stream are
-- ignored. dropped: the last entry that has dropped requests and revisits. home: the session on whose lease the wakes run;
-- NULL: its own. lineage, operator, extras: how it was made from others (`JournalCreation`). title, owner, labels: its
-- `Description`. used: the usage of removed entries by writer, the number of these entries with a usage, and its
-- sum by name: {"WRITER": [3, {"tokens": 30}]}. A writer is the beginning that the ids of the wakes of one instance share.
CREATE TABLE journals (
    journal_id    INTEGER PRIMARY KEY,
    session_id    TEXT UNIQUE,
    kind          TEXT NOT NULL,
    parent        TEXT,
    parent_journal INTEGER, -- of the parent as it was when it created this one
    home          TEXT,
    lineage       TEXT,
    operator      TEXT NOT NULL DEFAULT '',
    extras        TEXT NOT NULL DEFAULT '{}',
    title         TEXT,
    owner         TEXT,
    labels        TEXT NOT NULL DEFAULT '{}',
    base_id       INTEGER,
    base_seq      INTEGER,
    first_seq     INTEGER NOT NULL DEFAULT 1,
    last_seq      INTEGER NOT NULL DEFAULT 0,
    processed     INTEGER NOT NULL DEFAULT 0,
    dropped       INTEGER NOT NULL DEFAULT 0,
    closed        INTEGER NOT NULL DEFAULT 0,
    size          INTEGER NOT NULL DEFAULT 0,
    ended_wake    TEXT,
    ended_attempt INTEGER,
    used          TEXT NOT NULL DEFAULT '{}',
    oldest_at     REAL NOT NULL, -- no entry of its own is older
    kept_until    REAL, -- retention found nothing to remove, `kept_looks` times in a row, and looks again at this time
    kept_looks    INTEGER NOT NULL DEFAULT 0,
    created_at    REAL NOT NULL,
    updated_at    REAL NOT NULL
) STRICT;

CREATE INDEX journals_by_age ON journals (created_at, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX journals_by_base ON journals (base_id, base_seq) WHERE base_id IS NOT NULL;
CREATE INDEX journals_by_kind ON journals (kind, created_at, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX journals_by_parent ON journals (parent, created_at, session_id) WHERE parent IS NOT NULL;
CREATE INDEX journals_by_owner ON journals (owner, created_at, session_id) WHERE owner IS NOT NULL;
CREATE INDEX journals_deleted ON journals (journal_id) WHERE session_id IS NULL;
-- Retention finds journals that are over a bound by these. Short ones are not in the last two.
CREATE INDEX journals_by_oldest ON journals (oldest_at) WHERE kept_until IS NULL;
CREATE INDEX journals_kept ON journals (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX journals_by_entries ON journals (last_seq - first_seq) WHERE last_seq - first_seq >= 64;
CREATE INDEX journals_by_size ON journals (size) WHERE size > 65536;

-- The labels once more, to be found by.
CREATE TABLE journal_labels (
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    journal_id INTEGER NOT NULL,
    PRIMARY KEY (key, value, journal_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX journal_labels_by_journal ON journal_labels (journal_id);

CREATE TRIGGER journal_labelled AFTER INSERT ON journals WHEN NEW.labels <> '{}'
BEGIN
    INSERT INTO journal_labels (key, value, journal_id) SELECT key, value, NEW.journal_id FROM json_each(NEW.labels);
END;

CREATE TRIGGER journal_relabelled AFTER UPDATE OF labels ON journals WHEN NEW.labels <> OLD.labels
BEGIN
    DELETE FROM journal_labels WHERE journal_id = NEW.journal_id;
    INSERT INTO journal_labels (key, value, journal_id) SELECT key, value, NEW.journal_id FROM json_each(NEW.labels);
END;

-- origin_id, origin_seq: the entry that a merge has copied. request_seq: of an answer, the seq of its request.
CREATE TABLE journal_entries (
    journal_id  INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    event_id    TEXT,
    wake_id     TEXT,
    is_input    INTEGER NOT NULL,
    recorded_at REAL NOT NULL,
    origin_id   INTEGER,
    origin_seq  INTEGER,
    request_seq INTEGER,
    payload     TEXT NOT NULL,
    PRIMARY KEY (journal_id, seq)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX journal_entries_by_event ON journal_entries (journal_id, event_id) WHERE event_id IS NOT NULL;
CREATE INDEX journal_entries_by_kind ON journal_entries (journal_id, kind, seq);
CREATE INDEX journal_entries_by_origin ON journal_entries (origin_id, origin_seq) WHERE origin_id IS NOT NULL;
CREATE INDEX journal_entries_by_wake ON journal_entries (journal_id, wake_id, seq) WHERE wake_id IS NOT NULL;
CREATE INDEX journal_entries_inputs ON journal_entries (journal_id, seq) WHERE is_input;

-- How attempts of wakes have ended (`JournalWake`). seq: the last entry. base, processed: the watermark
-- before and behind it, which only grows: so the key has them in the order of their entries.
CREATE TABLE journal_wakes (
    journal_id INTEGER NOT NULL,
    processed  INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    wake_id    TEXT NOT NULL,
    base       INTEGER NOT NULL,
    read       INTEGER NOT NULL,
    outcome    TEXT NOT NULL,
    reason     TEXT NOT NULL,
    attempt    INTEGER NOT NULL,
    error      TEXT,
    PRIMARY KEY (journal_id, processed, seq)
) STRICT, WITHOUT ROWID;

-- seq: the first entry of the wake that made it.
CREATE TABLE journal_requests (
    id         INTEGER PRIMARY KEY,
    journal_id INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    kind       TEXT NOT NULL,
    wake_id    TEXT,
    seq        INTEGER NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    payload    TEXT NOT NULL,
    UNIQUE (journal_id, request_id)
) STRICT;

CREATE INDEX journal_requests_by_creation ON journal_requests (created_at, journal_id);
CREATE INDEX journal_requests_by_expiry ON journal_requests (ifnull(expires_at, 253370764800.0), journal_id);

CREATE TABLE journal_revisits (
    journal_id INTEGER NOT NULL,
    key        TEXT NOT NULL,
    due_at     REAL NOT NULL,
    priority   INTEGER NOT NULL,
    reason     TEXT NOT NULL,
    note       TEXT NOT NULL,
    wake_id    TEXT,
    PRIMARY KEY (journal_id, key)
) STRICT, WITHOUT ROWID;

-- child: session.
CREATE TABLE journal_delegations (
    journal_id    INTEGER NOT NULL,
    delegation_id TEXT NOT NULL,
    child         TEXT NOT NULL,
    PRIMARY KEY (journal_id, delegation_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX journal_delegations_by_child ON journal_delegations (child);

-- Open delegations to an instance end with it: they are runs of wakes, see `OpenDelegation`.
CREATE TRIGGER delegations_ended_with_instance AFTER DELETE ON instances
BEGIN
    DELETE FROM journal_delegations WHERE child = OLD.instance_id AND delegation_id = child;
END;

-- result: NULL while it runs.
CREATE TABLE journal_steps (
    journal_id INTEGER NOT NULL,
    wake_id    TEXT NOT NULL,
    key        TEXT NOT NULL,
    arguments  TEXT NOT NULL,
    result     TEXT,
    PRIMARY KEY (journal_id, wake_id, key)
) STRICT, WITHOUT ROWID;

-- Of each journal, the parts of one attempt of one wake.
CREATE TABLE journal_streams (
    journal_id INTEGER NOT NULL,
    wake_id    TEXT NOT NULL,
    attempt    INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    payload    TEXT NOT NULL,
    PRIMARY KEY (journal_id, wake_id, attempt, number)
) STRICT, WITHOUT ROWID;

-- A journal that others name here is kept, without its entries, when it is deleted: the way to its own parents.
CREATE TABLE journal_parents (
    journal_id INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    parent_id  INTEGER NOT NULL,
    PRIMARY KEY (journal_id, position)
) STRICT, WITHOUT ROWID;

CREATE INDEX journal_parents_by_parent ON journal_parents (parent_id);
