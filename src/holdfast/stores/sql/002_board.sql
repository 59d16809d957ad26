-- What processes show of their tools, and what they are told to do. A tour:
--
--   processes  one row per process that shows its tools, under the id of its lock file. `at` is when it last wrote,
--              `until` the time up to which it counts as alive if its lock cannot be checked, `seen` the number of the
--              last order that it took up, `servers` (msgpack) the servers that it has, if it is a proxy.
--   tools      one row per process and tool (msgpack): the circuit, limits and statistics. Written when it changed.
--   details    one row per process and tool, for readers that look at one tool: its policy, last calls and transitions.
--   orders     the last order for each tool, by its name: held `open` or `closed`, or NULL for automatic. Each order
--              has a number, larger than all before it; `reset` is that of the last reset. The order for a tool that is
--              held stays here for processes that start later, others are deleted after a day.
--   tools_of_runs  which runs used a tool, or wanted to: one row per run and tool, by which runs are found. Written
--              with the first event that names the tool, deleted with the run.
--
-- Who writes: to processes, tools and details, each process its own rows, and the next process that starts deletes
-- those of the dead; to orders, any process that gives one; to tools_of_runs, the process that writes the events. Only
-- tools_of_runs belongs to runs: the rest may be deleted at any time.

CREATE TABLE processes (
    id         TEXT    PRIMARY KEY,
    host       TEXT    NOT NULL,
    pid        INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    until      INTEGER NOT NULL,
    seen       INTEGER NOT NULL,
    servers    BLOB    NOT NULL
) WITHOUT ROWID;

CREATE TABLE tools (
    process TEXT NOT NULL,
    name    TEXT NOT NULL,
    entry   BLOB NOT NULL,
    PRIMARY KEY (process, name)
) WITHOUT ROWID;
CREATE INDEX tools_of_name ON tools (name);

CREATE TABLE details (
    name    TEXT NOT NULL,
    process TEXT NOT NULL,
    detail  BLOB NOT NULL,
    PRIMARY KEY (name, process)
) WITHOUT ROWID;
CREATE INDEX details_of_process ON details (process);

CREATE TABLE orders (
    tool   TEXT PRIMARY KEY,
    state  TEXT,
    number INTEGER NOT NULL UNIQUE,
    reset  INTEGER NOT NULL,
    at     INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE tools_of_runs (
    tool       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    run        INTEGER NOT NULL,
    PRIMARY KEY (tool, created_at, run)
) WITHOUT ROWID;
CREATE INDEX tools_of_run ON tools_of_runs (run);

INSERT OR IGNORE INTO tools_of_runs (tool, created_at, run)
SELECT tool, created_at, run FROM (
    SELECT CASE WHEN json_valid(e.payload) THEN json_extract(e.payload, '$.tool') END AS tool, r.created_at, r.key AS run
    FROM runs r JOIN events e ON e.run = r.key WHERE e.type IN ('tool_started', 'tool_denied')
) WHERE typeof(tool) = 'text';
