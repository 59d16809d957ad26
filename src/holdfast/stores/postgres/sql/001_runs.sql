-- The tables of a store on a PostgreSQL server, in a schema of their own. A tour:
--
--   runs        one row a run. `header` (JSON) does not change once there are events, but for the way in which the keys
--               of its calls are made; `snapshot` (msgpack) is the fold of the run's events and is rewritten in the
--               transaction that adds them. `version` is the number that the last transaction to write the run made up:
--               whoever has the run at hand writes it only if that has not changed, and else looks again. `changed` is
--               that transaction's own number, by which readers find what is new; `ended` is the same of a run that is
--               over. No index has a column that changes with each event, so that such an update touches none (and
--               `fillfactor` leaves it room on its page).
--               `owner` and `fence` say who may write: each new owner raises the fence, and a write under an older one
--               is refused. `cancel` is why somebody wants it cancelled. `first` is the oldest sequence still kept;
--               `base` is the fold of those before it, if any. `origin` is the store that it was imported from.
--               `target` and `priority` make it one of the queue. `weight` is the bytes that its events take, about.
--   events      append-only, numbered 0, 1, 2 … within a run. `payload` is JSON, redacted and cut before it comes here.
--               `by` is the version that its transaction gave to the run: so whoever did not hear whether a commit was
--               made can tell. The key begins with the run, so the table can be partitioned by it.
--   memos       the exact results of finished calls that their events do not say, read by resume alone, one row a call.
--               An empty outcome says that the call ended, or may have, and that no result was kept. Gone when the run
--               has completed. An empty key, in a fork of an imported run, is no call's: the rows beside it tell of all
--               calls that were made before the fork.
--   owners      one row a process that has runs; it lives until `until` (ms since the epoch, by the clock of the server),
--               or dies sooner with its lock, if it is `locked`.
--   processes, tools, details, orders   what processes show of their tools, and what they are told to do: as in the
--               tour of sql/002_board.sql for embedded stores.
--   tools_of_runs   which runs used a tool, or wanted to; by a digest of its name, which may be of any length.
--   meta        the store's id, the secret that keys the digests of arguments, when it was last pruned.
--   migrations  which of these files were applied.
--
-- Who writes: any process, on any host, each a group of writes in a transaction; those that write to different runs do
-- not wait for each other. Nothing needs a foreign key: what belongs to a run goes with it, in one transaction.
-- Texts are compared byte by byte. One that contains a null, which PostgreSQL cannot keep, has \x01 in its place; what
-- must come back exactly stands in JSON.

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

-- What a transaction has counted on is not so: it ends here, and is made again by whoever began it.
CREATE FUNCTION holdfast.agreed(seen BIGINT, expected BIGINT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF seen <> expected THEN
        RAISE EXCEPTION 'others have written meanwhile' USING ERRCODE = 'HF001';
    END IF;
END
$$;
