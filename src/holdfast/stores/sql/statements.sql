-- The statements of the embedded store that differ from PostgreSQL's, by name; the others are in shared.sql. The
-- tables, and who writes them, are described in 001_runs.sql.

-- name: next_key
-- Above the keys of all runs, and of all that were deleted.
SELECT 1 + max(
    coalesce((SELECT max(key) FROM runs), 0),
    coalesce((SELECT max(CAST(value AS BIGINT)) FROM meta WHERE name LIKE 'memos of %' OR name = 'last_key'), 0)
)

-- name: use_up_key
-- Before a run is deleted: its key is noted if it is the highest. All others stay below the highest anyway.
INSERT INTO meta (name, value) SELECT 'last_key', key FROM runs WHERE key = ? AND key = (SELECT max(key) FROM runs)
ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)

-- name: load
SELECT key, header, snapshot, touched_at, first, owner, fence, cancel, origin FROM runs WHERE id = ?

-- name: add_run
INSERT INTO runs (key, id, session, status, created_at, touched_at, header, snapshot, owner, fence, cancel, origin)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: change_run
-- The usual case: only events were added. No index is touched, and no row if the run has another owner by now.
UPDATE runs SET touched_at = ?, snapshot = ? WHERE key = ? AND fence = ?

-- name: change_standing
-- The last parameter is the fence that it had.
UPDATE runs SET touched_at = ?, snapshot = ?, status = ?, owner = ?, fence = ?, cancel = ? WHERE key = ? AND fence = ?

-- name: add_event
INSERT INTO events (run, sequence, at, type, late, payload) VALUES (?, ?, ?, ?, ?, ?)

-- name: add_memo
INSERT OR REPLACE INTO memos (run, key, name, outcome) VALUES (?, ?, ?, ?)

-- name: owner
SELECT id, host, pid, until, 0, awake_until FROM owners WHERE id = ?

-- name: keep_owner
-- The fifth parameter, whether the owner has a lock, is not stored: a process that asks sees it from the owner's file.
INSERT INTO owners (id, host, pid, until, awake_until)
SELECT column1, column2, column3, column4, column6 FROM (VALUES (?, ?, ?, ?, ?, ?)) WHERE true
ON CONFLICT (id) DO UPDATE SET until = max(until, excluded.until), awake_until = excluded.awake_until

-- name: page_of
-- A run and some of its events, as both are at one moment; one row without an event if there are none. The caller asks
-- for one row more than it needs, to see whether there are more.
SELECT r.first, r.status, e.sequence, e.at, e.type, e.late, e.payload
FROM runs r LEFT JOIN events e ON e.run = r.key AND e.sequence > ?
WHERE r.id = ? ORDER BY e.sequence LIMIT ?

-- name: list_of_session
SELECT header, snapshot, owner, fence, created_at, key FROM runs
WHERE session = ? AND (created_at, key) < (?, ?) ORDER BY created_at DESC, key DESC LIMIT ?

-- name: list_of_status_and_session
SELECT header, snapshot, owner, fence, created_at, key FROM runs
WHERE status = ? AND session = ? AND (created_at, key) < (?, ?) ORDER BY created_at DESC, key DESC LIMIT ?

-- name: list_of_tool
SELECT r.header, r.snapshot, r.owner, r.fence, t.created_at, t.run
FROM tools_of_runs t JOIN runs r ON r.key = t.run
WHERE t.tool = ? AND (t.created_at, t.run) < (?, ?) ORDER BY t.created_at DESC, t.run DESC LIMIT ?

-- name: add_tool_of_run
INSERT OR IGNORE INTO tools_of_runs (tool, created_at, run) VALUES (?, ?, ?)

-- name: last_change
SELECT (SELECT coalesce(max(id), 0) FROM events), (SELECT coalesce(max(key), 0) FROM runs)

-- name: changed
-- The runs that have new events, or are new.
SELECT header, snapshot, owner, fence FROM runs
WHERE key IN (SELECT run FROM events WHERE id > ? UNION SELECT key FROM runs WHERE key > ?)
ORDER BY created_at DESC, key DESC LIMIT ?

-- Export and import, see portable.py, records.py and staging.py.

-- name: owning
SELECT id, host, pid, until, 0, awake_until FROM owners WHERE id IN (SELECT owner FROM runs WHERE owner IS NOT NULL)

-- name: hold_still
-- Nothing to do: no other process can write while this transaction lasts.
SELECT 1

-- Runs that are imported are staged in a temporary database, with the tables that follow. The events of a run have the
-- ids above `start` up to `stop`; `known` is the key of the run in the store, if it is there already.

-- name: stage_runs
CREATE TABLE staged_runs (
    number INTEGER PRIMARY KEY, start, stop, id TEXT UNIQUE, session, status, created_at, touched_at, header, snapshot,
    first, base, fence, cancel, origin, known, key
)

-- name: stage_events
CREATE TABLE staged_events (id INTEGER PRIMARY KEY, run, sequence, at, type, late, payload)

-- name: stage_memos
CREATE TABLE staged_memos (id INTEGER PRIMARY KEY, run, key, name)

-- name: stage_tools
CREATE TABLE staged_tools (run, tool, UNIQUE (run, tool))

-- name: stage_run
INSERT INTO staged_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)

-- name: stage_event
INSERT INTO staged_events VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: stage_memo
INSERT INTO staged_memos (run, key, name) VALUES (?, ?, ?)

-- name: stage_tool
INSERT OR IGNORE INTO staged_tools VALUES (?, ?)

-- name: stage_key
UPDATE staged_runs SET key = ? WHERE number = ?

-- name: stage_known
UPDATE staged_runs SET known = ? WHERE number = ?

-- name: stage_unknown
UPDATE staged_runs SET known = NULL WHERE known IS NOT NULL

-- name: leave_out_known
DELETE FROM staged_runs WHERE known IS NOT NULL

-- name: staged_new
SELECT count(*) FROM staged_runs WHERE known IS NULL

-- name: staged_known
SELECT known FROM staged_runs WHERE known IS NOT NULL

-- name: staged_numbers
SELECT number FROM staged_runs WHERE known IS NULL ORDER BY number

-- name: staged_heads
SELECT number, start, stop, id, header, first, base FROM staged_runs ORDER BY number

-- name: staged_page
SELECT sequence, at, type, late, payload FROM staged_events WHERE id > ? AND id <= ? ORDER BY id

-- name: staged_runs
SELECT key, id, session, status, created_at, touched_at, header, snapshot, first, base, fence, cancel, origin
FROM staged_runs WHERE known IS NULL ORDER BY number

-- name: staged_events
SELECT r.key, e.sequence, e.at, e.type, e.late, e.payload
FROM staged_events e JOIN staged_runs r ON r.number = e.run WHERE r.known IS NULL ORDER BY e.id

-- name: staged_memos
-- The outcome is empty: the call counts as in doubt. A completed run needs no memos.
SELECT r.key, m.key, m.name, x'' FROM staged_memos m JOIN staged_runs r ON r.number = m.run
WHERE r.known IS NULL AND r.status <> 'completed' ORDER BY m.id

-- name: staged_tools
SELECT t.tool, r.created_at, r.key FROM staged_tools t JOIN staged_runs r ON r.number = t.run WHERE r.known IS NULL

-- name: put_run
INSERT INTO runs (
    key, id, session, status, created_at, touched_at, header, snapshot, first, base, fence, cancel, origin
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- Retention, see retention.py.

-- name: surplus
SELECT id FROM runs WHERE status IN ('completed', 'failed', 'cancelled') ORDER BY created_at, key
LIMIT min(
    ?, max(0, (SELECT count(*) FROM runs WHERE status IN ('completed', 'failed', 'cancelled')) - ?)
)

-- name: too_heavy
-- The first event to keep, if the payloads of all have more bytes than the number given.
SELECT keep FROM (
    SELECT max(sequence) + 1 AS keep FROM (
        SELECT sequence, sum(length(CAST(payload AS BLOB))) OVER (ORDER BY sequence DESC) AS weight
        FROM events WHERE run = ?
    ) WHERE weight > ?
) WHERE keep IS NOT NULL

-- name: prunable
SELECT key, status, touched_at, header, first, base, owner, fence,
    coalesce((SELECT max(sequence) + 1 FROM events WHERE run = runs.key), first)
FROM runs WHERE id = ?

-- name: set_base
UPDATE runs SET first = ?, base = ? WHERE key = ?

-- name: beyond
-- The oldest finished runs, if the database has more bytes in use than the number given; `is_enough` tells, as they are
-- deleted, how many of them must go.
SELECT id FROM runs
WHERE status IN ('completed', 'failed', 'cancelled') AND (
    SELECT (p.page_count - f.freelist_count) * s.page_size
    FROM pragma_page_count AS p, pragma_freelist_count AS f, pragma_page_size AS s
) > ? ORDER BY created_at, key LIMIT ?

-- name: size
SELECT (p.page_count - f.freelist_count) * s.page_size
FROM pragma_page_count AS p, pragma_freelist_count AS f, pragma_page_size AS s

-- name: is_enough
SELECT (p.page_count - f.freelist_count) * s.page_size <= ?
FROM pragma_page_count AS p, pragma_freelist_count AS f, pragma_page_size AS s

-- name: set_pruned_at
INSERT INTO meta (name, value) VALUES ('pruned_at', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- The queue, see queue.py. Its columns are described in 003_queue.sql.

-- name: hold_queue
-- Nothing to do: no other process can take a run while this transaction lasts.
SELECT 1

-- name: queue_run
UPDATE runs SET target = ?, priority = ? WHERE key = ?
