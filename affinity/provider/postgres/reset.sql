-- reset: open an instance again at an earlier point of its history
SELECT reset_instance(%(instance)s, %(generation)s, %(execution)s, %(events)s, %(keep)s, %(event)s, %(custom_status)s,
    %(message_instance)s, %(message_generation)s, %(message)s, %(message_delay)s, %(message_timer)s, %(item_activity)s,
    %(item_name)s, %(item_session)s, %(item_payload)s, %(watch_session)s, %(watch)s,
    %(item_order)s, %(item_gate)s, %(item_limited)s, %(item_head_start)s,
    %(cleared)s, %(value_of)s, %(value_key)s, %(value)s, %(labels)s)

-- was_reset: the effect of reset, for `with_shares`
SELECT 1, 'done' FROM result WHERE reset_instance
