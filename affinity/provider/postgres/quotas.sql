-- get_quotas: the limits of the database, if there are any
SELECT instances, unread_events, instance_bytes FROM quotas

-- set_quotas: replace them
SELECT set_quotas(%(instances)s, %(unread_events)s, %(instance_bytes)s)

-- quotas_set: the effect of set_quotas, for `with_shares`
SELECT 1, 'done' FROM result
