"""SQLite: the embedded default, one machine, many processes.

`provider` hands each operation to a thread that owns a connection; the operation itself is a plain function of a
transaction. Files with the same name do the same in `affinity.provider.postgres`; the SQL of each is in the ``.sql``
file beside it:

    backend             operations by URL: open, migrate, inspect, rights
    provider            the class: opening, closing, and all operations together
    workers             names and their leases: register, renew, drain, release, list
    fetching            work items: fetch, and claim the sessions that no worker holds
    work_items          work items in hand: renew, check, ack, abandon, begin
    waits               work that has waited for as long as it may
    orchestrations      instances as workers see them: fetch, read histories, release
    turns               the commit of turns
    sessions            session leases: check, list
    releasing           session leases: release by hand, and to make room for others
    planned_moves       sessions that move to a named worker: by hand, or because it was offered them
    moves               the records of moves: list, report the costs of hydrates
    session_store       the records of session state
    suspension          suspended instances: suspend, retry, resume
    reset               opening an instance again at an earlier point of its history
    messages            create instances, and send messages to them
    replies             keys of messages, and the replies to them
    values              values that instances have set
    instances           instances as clients see them: get, list, delete
    management          listings for operators: origins, work items, executions, trees, counts
    failures            failed attempts and orchestrations: keep, list, count, remove
    quotas              limits of one database
    rebalancing         how full the workers are
    retention           removal of instances and histories that ended long ago
    sweep               repair of stale routes, removal of dead rows
    old_data            removal of old data by a sweep
    activity_waits      activities that wait for instances: begin, end, who waits for whom
    resources           resources that outlive a process
    hints               hints between processes
    actions             verbs that users call, and the shares of guests in their transactions
    changes             changes by session id: the subscription to them, and notices
    parts               the parts of guests: verbs, and their share in operations of others
    identity            the name of the database, and whether its payloads are encoded
    checks              what a file and its disk have and lack
    migration           bringing the schema up to date, and refusing one that this code cannot use

Files that only this engine has:

    holds               holds and watches of sessions, as parts of a commit
    placing             where new work items of a commit go
    parking             parked work items, until their guest queues them
    session_states      records of session state: the fences of their writes
    session_state_list  records of session state: listing and counting
    payloads            reading payloads up to a number of bytes
    verbs               verbs of the provider, made from operations
    driver/             the connection, its transactions, its thread, the clock, errors, the timeline
    schema/             the whole schema, by subject
"""

from affinity.provider.sqlite.driver.clock import Clock
from affinity.provider.sqlite.provider import SqliteProvider

__all__ = ["Clock", "SqliteProvider"]
