-- create: instances with their start messages
SELECT n, quota, allowed FROM create_instances(%(instance)s, %(generation)s, %(name)s, %(version)s, %(start)s, %(parent)s,
    %(parent_generation)s, %(delay)s, %(on_exists)s, %(on_deleted)s, %(session)s, NULL, %(gate)s, %(limited)s, %(head_start)s,
    %(not_before)s, %(labels)s)

-- restart: ended instances, with their start messages
SELECT n, quota, allowed FROM restart_instances(%(instance)s, %(ended)s, %(generation)s, %(name)s, %(version)s, %(start)s,
    %(session)s, %(gate)s, %(limited)s, %(head_start)s, %(delay)s, %(not_before)s, %(when)s, %(within)s, %(cancel)s,
    %(labels)s)

-- send: messages for instances
SELECT n, delivery FROM send_messages(%(message_instance)s, %(message_generation)s, %(message)s, %(message_delay)s,
    %(message_execution)s, %(message_timer)s, %(unread_limit)s, _ends_wait => %(ends_wait)s)

-- send_keyed: messages, some with a key
SELECT n, delivery FROM send_keyed_messages(%(message_instance)s, %(message_generation)s, %(message)s, %(message_delay)s,
    %(message_execution)s, %(message_timer)s, %(unread_limit)s, %(key)s, %(ends_wait)s)

-- started: the effects of create, restart and the writes of schedules, for `with_shares`
SELECT n, 'done' FROM result WHERE n IS NOT NULL

-- sent: the effects of send, for `with_shares`
SELECT n, delivery FROM result WHERE delivery = 'delivered'

-- client_create: the same as create, for clients
SELECT n, quota, allowed FROM client_create_instances(%(instance)s, %(generation)s, %(name)s, %(version)s, %(start)s, %(delay)s,
    %(session)s, %(gate)s, %(not_before)s, %(labels)s)

-- client_restart: the same as restart, for clients
SELECT n, quota, allowed FROM client_restart_instances(%(instance)s, %(ended)s, %(generation)s, %(name)s, %(version)s,
    %(start)s, %(session)s, %(gate)s, %(delay)s, %(not_before)s, %(when)s, %(within)s, %(cancel)s, %(labels)s)

-- client_send: the same as send and send_keyed, for clients
SELECT n, delivery FROM client_send_messages(%(message_instance)s, %(message_generation)s, %(message)s, %(unread_limit)s,
    %(key)s)
