-- write: entries, in a transaction of their own
SELECT write_audit(%(entries)s)

-- write_effects: the entries of an action, of which `action_effects` has the effects
SELECT write_effects(%(audit_entries)s, array_agg(e.place::bigint), array_agg(e.outcome::text)) FROM action_effects e

-- list: one page of entries, newest first
SELECT a.entry_id, a.at, a.stated_user, a.source, a.role, a.action, a.kind, a.target, a.outcome, a.succeeded, a.details
FROM audit a
WHERE (%(user)s::text IS NULL OR a.stated_user = %(user)s)
  AND (%(source)s::text IS NULL OR a.source = %(source)s)
  AND (%(action)s::text IS NULL OR a.action = %(action)s)
  AND (%(target)s::text IS NULL OR a.target = %(target)s)
  AND (%(succeeded)s::boolean IS NULL OR a.succeeded = %(succeeded)s)
  AND (%(since)s::timestamptz IS NULL OR a.at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR a.at < %(until)s)
  AND (%(after_time)s::timestamptz IS NULL OR (a.at, a.entry_id) < (%(after_time)s, %(after_id)s))
ORDER BY a.at DESC, a.entry_id DESC LIMIT %(limit)s

-- remove: the oldest entries
SELECT remove_audit(%(older_than)s, %(limit)s)
