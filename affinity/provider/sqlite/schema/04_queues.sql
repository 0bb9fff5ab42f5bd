-- Messages for instances, and work items for workers. The integer key is the order of arrival, and it ends every index, so
-- that "by visibility, then by arrival" needs no sort.

-- AUTOINCREMENT: workers name messages by id while they work on them, so an id must never come back.
CREATE TABLE orchestrator_queue (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    instance_id     TEXT NOT NULL,
    route           TEXT NOT NULL,
    visible_at      REAL NOT NULL,
    timer_execution INTEGER,
    timer_id        INTEGER,
    payload         TEXT NOT NULL
) STRICT;

CREATE INDEX orchestrator_queue_by_instance ON orchestrator_queue (instance_id, visible_at);
CREATE INDEX orchestrator_queue_by_route ON orchestrator_queue (route, visible_at);
CREATE INDEX orchestrator_queue_timers ON orchestrator_queue (instance_id, timer_execution, timer_id)
    WHERE timer_id IS NOT NULL;

-- route: 'w:W' of the holder W of its session, 'new:W' of a worker W to which the session moves, 'new' of a session without a
-- holder, 'free' without a session; 'new#TAG' and 'free#TAG' with a tag, which only workers with the tag read; 'blocked' behind
-- another item in its session's order; 'gate' and 'gated' at its gate. needs: the name that a worker must register, beside the
-- item's own, to fetch an item that was given back as unknown. order_session, order_number: the session in whose order an item
-- stands, and its place there; items behind the first have no session_id, so that no statement which looks for the items of a
-- session finds them.
-- gate: at which it waits until a guest admits it, on the route 'gate' when it has come, or come back, and on 'gated' once that
-- guest has seen it. limited: the gate has limits; then the item keeps its place there from its admission until it is removed or
-- comes back, and while it waits it has its session in gate_session, and not in session_id. Otherwise the item begins on its
-- route, and waits only when it comes back.
-- takeover_after, fail_after: seconds that it waits for a slot of the holder of its session before another worker may take the
-- session over, and before it fails; waits_since, attend_at: since when it waits, and when that has to be checked.
CREATE TABLE worker_queue (
    id               INTEGER PRIMARY KEY,
    instance_id      TEXT NOT NULL,
    execution_id     INTEGER NOT NULL,
    activity_id      INTEGER NOT NULL,
    name             TEXT NOT NULL,
    session_id       TEXT,
    route            TEXT NOT NULL,
    visible_at       REAL NOT NULL,
    lock_worker      TEXT,
    lock_incarnation TEXT,
    lock_token       TEXT,
    locked_until     REAL,
    locked_at        REAL, -- by the last fetch; NULL: when it was queued, or not yet
    attempts         INTEGER NOT NULL DEFAULT 0,
    failures         INTEGER NOT NULL DEFAULT 0,
    unknown_since    REAL,
    enqueued_at      REAL NOT NULL,
    needs            TEXT,
    order_session    TEXT,
    order_number     INTEGER,
    tag              TEXT,
    takeover_after   REAL,
    fail_after       REAL,
    waits_since      REAL,
    attend_at        REAL,
    gate             TEXT,
    limited          INTEGER,
    gate_session     TEXT,
    passed_over      REAL, -- seconds that it had its places and no worker took it, with the pauses since; NULL: not so
    failed_at        REAL, -- time of the last of `failures`
    last_error       TEXT, -- of the failure before, for people
    payload          TEXT NOT NULL,
    UNIQUE (instance_id, execution_id, activity_id)
) STRICT;

CREATE INDEX worker_queue_attend ON worker_queue (attend_at) WHERE attend_at IS NOT NULL;
CREATE INDEX worker_queue_by_order ON worker_queue (order_session, order_number) WHERE order_session IS NOT NULL;
CREATE INDEX worker_queue_by_route ON worker_queue (route, visible_at);
CREATE INDEX worker_queue_failed ON worker_queue (visible_at) WHERE failures > 0;
CREATE INDEX worker_queue_limited ON worker_queue (gate_session) WHERE gate_session IS NOT NULL;
CREATE INDEX worker_queue_by_session ON worker_queue (session_id, route) WHERE session_id IS NOT NULL;

-- The first item of an order is removed: the next one takes its place. Its route is the route of a planned move of the session,
-- else the route of the first item, to the holder; a stale route is repaired, as all are. One with limits goes to its gate.
CREATE TRIGGER promote_next AFTER DELETE ON worker_queue
WHEN OLD.order_session IS NOT NULL AND OLD.route <> 'blocked'
BEGIN
    UPDATE worker_queue SET session_id = iif(limited, NULL, order_session), route = iif(limited, 'gate', coalesce(
        (SELECT 'new:' || s.next_worker FROM sessions AS s WHERE s.session_id = OLD.order_session),
        iif(OLD.route > 'w:', OLD.route, 'new')
    ))
    WHERE route = 'blocked' AND id = (
        SELECT q.id FROM worker_queue AS q WHERE q.order_session = OLD.order_session ORDER BY q.order_number LIMIT 1
    );
END;

-- Add the tag to a route that any worker would read, and to an offer to a worker without the tag. A session's own tag
-- decides, once work has given it one: also for an item without a tag, and for one with another tag, which the holder
-- refuses. Triggers, so that it holds for every statement.
CREATE TRIGGER worker_queue_tag_new AFTER INSERT ON worker_queue
WHEN NEW.route = 'free' AND NEW.tag IS NOT NULL
  OR NEW.route >= 'new' AND NEW.route < 'new;' AND (
      NEW.tag IS NOT NULL AND NEW.route = 'new'
      OR EXISTS (
          SELECT 1 FROM sessions AS s WHERE s.session_id = NEW.session_id AND s.tag IS NOT NULL
            -- An offer, or a planned move, to a worker with the tag stands.
            AND NOT EXISTS (
                SELECT 1 FROM workers AS w, json_each(w.tags) AS has
                WHERE w.worker_id = substr(NEW.route, 5) AND has.value IN (s.tag, 'any'))))
BEGIN
    UPDATE worker_queue SET route = coalesce(
        iif(NEW.session_id IS NULL, 'free#' || NEW.tag, NULL),
        (SELECT iif(s.tag IS NULL, 'new', 'new#' || s.tag) FROM sessions AS s
         WHERE s.session_id = NEW.session_id AND s.worker_id <> ''),
        'new#' || NEW.tag, route)
    WHERE id = NEW.id;
END;

CREATE TRIGGER worker_queue_tag AFTER UPDATE OF route ON worker_queue
WHEN NEW.route = 'free' AND NEW.tag IS NOT NULL
  OR NEW.route = 'new' AND (
      NEW.tag IS NOT NULL
      OR EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = NEW.session_id AND s.tag IS NOT NULL))
BEGIN
    UPDATE worker_queue SET route = coalesce(
        iif(NEW.session_id IS NULL, 'free#' || NEW.tag, NULL),
        (SELECT iif(s.tag IS NULL, 'new', 'new#' || s.tag) FROM sessions AS s
         WHERE s.session_id = NEW.session_id AND s.worker_id <> ''),
        'new#' || NEW.tag, route)
    WHERE id = NEW.id;
END;

-- Work items that are parked until a guest queues them: see `NewWorkItem.parked`. They are in no queue, and no verb of a queue
-- finds them. Of each instance the last one; removed with the execution in which it was scheduled. While one is here, the guest
-- has no work for it.
CREATE TABLE parked_items (
    instance_id  TEXT PRIMARY KEY,
    execution_id INTEGER NOT NULL,
    activity_id  INTEGER NOT NULL,
    name         TEXT NOT NULL,
    session_id   TEXT,
    gate         TEXT,
    limited      INTEGER,
    payload      TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Records the end of an execution, and removes its parked item, whichever statement ends it.
CREATE TRIGGER execution_ended AFTER UPDATE OF status, execution_id ON instances
WHEN NEW.execution_id <> OLD.execution_id
  OR NEW.status IN ('completed', 'failed', 'cancelled') AND OLD.status NOT IN ('completed', 'failed', 'cancelled')
BEGIN
    INSERT INTO ended_executions (instance_id, execution_id, is_last, ended_at)
    VALUES (NEW.instance_id, OLD.execution_id, NEW.execution_id = OLD.execution_id, NEW.updated_at)
    ON CONFLICT (instance_id, execution_id) DO UPDATE SET is_last = excluded.is_last, ended_at = excluded.ended_at;
    DELETE FROM parked_items WHERE instance_id = NEW.instance_id;
END;

-- Activities that wait for an instance to end (target_id: NULL), or for data that a guest keeps under its id; target_id
-- and seq name the data to that guest. lock_token: of their work items; when the lock is over, so is the wait.
CREATE TABLE activity_waits (
    wait_id      INTEGER PRIMARY KEY,
    instance_id  TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    activity_id  INTEGER NOT NULL,
    lock_token   TEXT NOT NULL,
    awaited      TEXT NOT NULL,
    target_id    INTEGER,
    seq          INTEGER,
    began        REAL NOT NULL
) STRICT;

CREATE INDEX activity_waits_by_instance ON activity_waits (instance_id);
