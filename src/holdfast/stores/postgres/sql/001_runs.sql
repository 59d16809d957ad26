-- The tables of a store on a PostgreSQL server, in a schema of their own. A tour:
--
--   runs        one row per run. `header` (JSON) does not change once there are events, except its note of how the keys
--               of the run's calls are made; `snapshot` (msgpack) is the fold of the run's events and is rewritten in
--               the transaction that adds them. `version` is a number made up by the last transaction that wrote the
--               run: a process that has the run cached writes it only if that has not changed, otherwise it reads the
--               run again. `changed` is PostgreSQL's own number of that transaction, by which readers find what is new;
--               `ended` is the same for a run that has ended. No index has a column that changes with each event, so
--               that such an update touches no index (and `fillfactor` leaves room for it on its page).
--               `owner` and `fence` say which process may write: each new owner raises the fence, and a write under an
--               older one is refused. `cancel` is the reason why the run is to be cancelled, if it is. `first` is the
--               oldest sequence still kept; `base` is the fold of the events before it, if any. `origin` is the store
--               that the run was imported from. `target` and `priority` put the run into the queue. `weight` is about
--               how many bytes its events take.
--   events      append-only, numbered 0, 1, 2 … within a run. `payload` is JSON, redacted and cut before it comes here.
--               `by` is the version that its transaction gave to the run: by it a process that got no answer to its
--               commit can tell whether it was made. The key begins with the run, so the table can be partitioned.
--   memos       the exact results of finished calls that their events do not contain, read only by resume, one row per
--               call. An empty outcome says that the call ended, or may have, and that no result was kept. Deleted when
--               the run has completed. An empty key, in a fork of an imported run, belongs to no call: it says that the
--               other rows cover all calls that were made before the fork.
--   owners      one row per process that has runs; it counts as alive until `until` (ms since the epoch, by the clock
--               of the server; see also 002_awake.sql), or, if it is `locked`, until its lock is released if that is
--               sooner.
--   processes, tools, details, orders   what processes show of their tools, and what they are told to do: as in the
--               tour of sql/002_board.sql for embedded stores.
--   tools_of_runs   which runs used a tool, or wanted to; by a digest of its name, which may be of any length.
--   meta        the store's id, the secret that keys the digests of arguments, when the store was last pruned.
--   migrations  which of these files were applied.
--
-- Who writes: any process, on any host, a group of writes per transaction; processes that write to different runs do
-- not wait for each other. Nothing needs a foreign key: what belongs to a run is deleted with it, in one transaction.
-- Texts are compared byte by byte. A null character, which PostgreSQL cannot store, is replaced by \x01; texts that
-- must come back exactly are in JSON.

CREATE TABLE holdfast.meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);

CREATE SEQUENCE holdfast.run_keys;

CREATE TABLE holdfast.runs (
    key         BIGINT   PRIMARY KEY,
    id          TEXT     COLLATE "C" NOT NULL,
    session     TEXT     COLLATE "C" NOT NULL,
    status      TEXT     COLLATE "C" NOT NULL,
    created_at  BIGINT   NOT NULL,
    touched_at  BIGINT   NOT NULL,
    version     BIGINT   NOT NULL,
    changed     BIGINT   NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    ended       BIGINT,
    weight      BIGINT   NOT NULL DEFAULT 0,
    first       BIGINT   NOT NULL DEFAULT 0,
    fence       BIGINT   NOT NULL DEFAULT 0,
    priority    BIGINT   NOT NULL DEFAULT 0,
    owner       TEXT     COLLATE "C",
    cancel      TEXT,
    origin      TEXT,
    target      TEXT     COLLATE "C",
    header      TEXT     NOT NULL,
    snapshot    BYTEA    NOT NULL,
    base        BYTEA
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX runs_by_id     ON holdfast.runs (id);
CREATE INDEX runs_newest     ON holdfast.runs (created_at, key);
CREATE INDEX runs_of_status  ON holdfast.runs (status, created_at, key);
CREATE INDEX runs_of_session ON holdfast.runs (hashtextextended(session, 0), created_at, key);
CREATE INDEX runs_of_owner   ON holdfast.runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_ended      ON holdfast.runs (ended) WHERE ended IS NOT NULL;
CREATE INDEX runs_queued     ON holdfast.runs (target, priority DESC, created_at, key)
    WHERE target IS NOT NULL AND status = 'created' AND fence = 0;
CREATE INDEX runs_begun      ON holdfast.runs (target, owner, key)
    WHERE target IS NOT NULL AND fence > 0 AND status IN ('created', 'planning', 'executing', 'verifying');

CREATE TABLE holdfast.events (
    run      BIGINT   NOT NULL,
    sequence BIGINT   NOT NULL,
    at       BIGINT   NOT NULL,
    by       BIGINT   NOT NULL,
    late     SMALLINT NOT NULL,
    type     TEXT     NOT NULL,
    payload  TEXT     NOT NULL,
    PRIMARY KEY (run, sequence)
);

CREATE TABLE holdfast.memos (
    run     BIGINT NOT NULL,
    key     BYTEA  NOT NULL,
    name    TEXT   NOT NULL,
    outcome BYTEA  NOT NULL,
    PRIMARY KEY (run, key)
);

CREATE TABLE holdfast.owners (
    id     TEXT    COLLATE "C" PRIMARY KEY,
    host   TEXT    NOT NULL,
    pid    BIGINT  NOT NULL,
    until  BIGINT  NOT NULL,
    locked BOOLEAN NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE holdfast.tools_of_runs (
    tool       BYTEA  NOT NULL,
    created_at BIGINT NOT NULL,
    run        BIGINT NOT NULL,
    PRIMARY KEY (tool, created_at, run)
);
CREATE INDEX tools_of_run ON holdfast.tools_of_runs (run);

CREATE TABLE holdfast.processes (
    id         TEXT   COLLATE "C" PRIMARY KEY,
    host       TEXT   NOT NULL,
    pid        BIGINT NOT NULL,
    kind       TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    started_at BIGINT NOT NULL,
    at         BIGINT NOT NULL,
    until      BIGINT NOT NULL,
    seen       BIGINT NOT NULL,
    servers    BYTEA  NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE holdfast.tools (
    process TEXT  COLLATE "C" NOT NULL,
    name    TEXT  COLLATE "C" NOT NULL,
    entry   BYTEA NOT NULL,
    PRIMARY KEY (process, name)
) WITH (fillfactor = 50);
CREATE INDEX tools_of_name ON holdfast.tools (name);

CREATE TABLE holdfast.details (
    name    TEXT  COLLATE "C" NOT NULL,
    process TEXT  COLLATE "C" NOT NULL,
    detail  BYTEA NOT NULL,
    PRIMARY KEY (name, process)
) WITH (fillfactor = 50);
CREATE INDEX details_of_process ON holdfast.details (process);

CREATE TABLE holdfast.orders (
    tool   TEXT   COLLATE "C" PRIMARY KEY,
    state  TEXT,
    number BIGINT NOT NULL UNIQUE,
    reset  BIGINT NOT NULL,
    at     BIGINT NOT NULL
);

-- Ends a transaction that relied on something which is no longer true; the process that began it makes it again.
CREATE FUNCTION holdfast.agreed(seen BIGINT, expected BIGINT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF seen <> expected THEN
        RAISE EXCEPTION 'others have written meanwhile' USING ERRCODE = 'HF001';
    END IF;
END
$$;
