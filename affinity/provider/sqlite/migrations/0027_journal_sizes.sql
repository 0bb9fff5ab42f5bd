-- Retention of journals finds those that are over a bound of entries or bytes by an index. Short ones are in neither.

CREATE INDEX journals_by_entries ON journals (last_seq - first_seq) WHERE last_seq - first_seq >= 64;
CREATE INDEX journals_by_size ON journals (size) WHERE size > 65536;
