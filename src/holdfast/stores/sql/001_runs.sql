-- The tables of an embedded store. A tour:
--
--   runs     one row per run. `header` (JSON) does not change once there are events, except its note of how the keys of
--            the run's calls are made; `snapshot` (msgpack) is the fold of the run's events and is rewritten in the
--            transaction that adds them, so it is never ahead of them or behind.
--            `owner` and `fence` say which process may write: each new owner raises the fence, and a write under an
--            older one is refused. `cancel` is the reason why the run is to be cancelled, if it is. `first` is the
--            oldest sequence still kept; `base` is the fold of the events before it, if any. `origin` is the store that
--            the run was imported from.
--   events   append-only, numbered 0, 1, 2 … within a run. `payload` is JSON, redacted and cut before it comes here.
--   memos    the exact results of finished calls that their events do not contain, read only by resume, one row per
--            call. An empty outcome says that the call ended, or may have, and that no result was kept. Deleted when
--            the run has completed or is deleted; if there are many, the rest in small writes soon after. An empty key,
--            in a fork of an imported run, belongs to no call: it says that the other rows cover all calls that were
--            made before the fork.
--   owners   one row per process that has runs; it counts as alive until `until` (ms since the epoch; see also
--            004_awake.sql), or until its lock is released if that is sooner.
--   meta     the store's id, the secret that keys the digests of arguments, when the store was last pruned, which runs
--            that have completed or were deleted still have memos, and the highest key of a deleted run: none gets it
--            again, since an owner of the deleted one may still be there.
--
-- Who writes: one connection per process, a group of writes per transaction. Who reads: any process, at any time (WAL).

CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

CREATE TABLE runs (
    key         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    session     TEXT    NOT NULL,
    status      TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    touched_at  INTEGER NOT NULL,
    header      TEXT    NOT NULL,
    snapshot    BLOB    NOT NULL,
    first       INTEGER NOT NULL DEFAULT 0,
    base        BLOB,
    owner       TEXT,
    fence       INTEGER NOT NULL DEFAULT 0,
    cancel      TEXT,
    origin      TEXT
);
CREATE INDEX runs_newest     ON runs (created_at, key);
CREATE INDEX runs_of_status  ON runs (status, created_at, key);
CREATE INDEX runs_of_session ON runs (session, created_at, key);
CREATE INDEX runs_of_owner   ON runs (owner) WHERE owner IS NOT NULL;

CREATE TABLE events (
    id       INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    type     TEXT    NOT NULL,
    late     INTEGER NOT NULL,
    payload  TEXT    NOT NULL
);
CREATE UNIQUE INDEX events_in_order ON events (run, sequence);

CREATE TABLE memos (
    run     INTEGER NOT NULL,
    key     BLOB    NOT NULL,
    name    TEXT    NOT NULL,
    outcome BLOB    NOT NULL,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;

CREATE TABLE owners (
    id    TEXT PRIMARY KEY,
    host  TEXT    NOT NULL,
    pid   INTEGER NOT NULL,
    until INTEGER NOT NULL
) WITHOUT ROWID;
