-- The tables of an embedded store. A tour:
--
--   runs     one row a run. `header` (JSON) does not change once there are events, but for the way in which the keys of
--            its calls are made; `snapshot` (msgpack) is the fold of the run's events and is rewritten in the transaction
--            that adds them, so it is never ahead of them or behind.
--            `owner` and `fence` say who may write: each new owner raises the fence, and a write under an older one is
--            refused. `cancel` is why somebody wants it cancelled. `first` is the oldest sequence still kept; `base` is
--            the fold of those before it, if any. `origin` is the store that it was imported from.
--   events   append-only, numbered 0, 1, 2 … within a run. `payload` is JSON, redacted and cut before it comes here.
--   memos    the exact results of finished calls that their events do not say, read by resume alone, one row a call. An
--            empty outcome says that the call ended, or may have, and that no result was kept. Gone when the run has
--            completed, or is gone; what is left of many, in small writes soon after. An empty key, in a fork of an
--            imported run, is no call's: the rows beside it tell of all calls that were made before the fork.
--   owners   one row a process that has runs; it lives until `until` (ms since the epoch), or dies sooner with its lock.
--   meta     the store's id, the secret that keys the digests of arguments, when it was last pruned, which runs that
--            are completed or gone have memos yet: no other run gets such a key.
--
-- Who writes: one connection a process, a group of writes in a transaction. Who reads: anybody, at any time (WAL).

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
