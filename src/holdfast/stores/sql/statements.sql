-- Every statement of the embedded store, by name. The tables, and who writes them, are described in 001_runs.sql.

-- name: next_key
SELECT coalesce(max(key), 0) + 1 FROM runs

-- name: load
SELECT key, header, snapshot, touched_at, first, owner, fence, cancel, origin FROM runs WHERE id = ?

-- name: add_run
INSERT INTO runs (key, id, session, status, created_at, touched_at, header, snapshot, owner, fence, cancel, origin)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: change_header
UPDATE runs SET header = ? WHERE key = ?

-- name: change_run
-- The usual case: only events were added. No index is touched.
UPDATE runs SET touched_at = ?, snapshot = ? WHERE key = ?

-- name: change_standing
UPDATE runs SET touched_at = ?, snapshot = ?, status = ?, owner = ?, fence = ?, cancel = ? WHERE key = ?

-- name: add_event
INSERT INTO events (run, sequence, at, type, late, payload) VALUES (?, ?, ?, ?, ?, ?)

-- name: add_memo
INSERT OR REPLACE INTO memos (run, key, name, outcome) VALUES (?, ?, ?, ?)

-- name: forget_memos
DELETE FROM memos WHERE run = ?

-- name: keep_memo
INSERT OR IGNORE INTO memos (run, key, name, outcome) VALUES (?, ?, ?, ?)

-- name: memos
SELECT key, name, outcome FROM memos WHERE run = ?

-- name: ended
-- What the calls of a run gave, where its events say it; see said.py.
SELECT payload FROM events WHERE run = ? AND type IN ('tool_ended', 'step_ended') ORDER BY sequence

-- name: owner
SELECT id, host, pid, until FROM owners WHERE id = ?

-- name: keep_owner
INSERT INTO owners (id, host, pid, until) VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET until = excluded.until WHERE until < excluded.until

-- name: drop_owner
DELETE FROM owners WHERE id = ?

-- name: drop_old_owners
DELETE FROM owners WHERE until < ? AND id NOT IN (SELECT owner FROM runs WHERE owner IS NOT NULL)

-- name: cancels
SELECT id, cancel FROM runs WHERE owner = ? AND cancel IS NOT NULL

-- name: remembered
SELECT key, header, snapshot, origin FROM runs WHERE id = ?

-- name: show
SELECT header, snapshot, owner, fence FROM runs WHERE id = ?

-- name: page_of
-- A run and some of its events, as both are at one moment; one row without an event if there are none. One row more than
-- asked for says whether there are more.
SELECT r.first, r.status, e.sequence, e.at, e.type, e.late, e.payload
FROM runs r LEFT JOIN events e ON e.run = r.key AND e.sequence > ? WHERE r.id = ? ORDER BY e.sequence LIMIT ?

-- name: page
SELECT sequence, at, type, late, payload FROM events WHERE run = ? AND sequence > ? ORDER BY sequence LIMIT ?

-- name: place
SELECT created_at, key FROM runs WHERE id = ?

-- name: list
SELECT header, snapshot, owner, fence, created_at, key FROM runs
WHERE (created_at, key) < (?, ?) ORDER BY created_at DESC, key DESC LIMIT ?

-- name: missing
-- Numbers below the last that no run has: in one statement, as runs come and go meanwhile.
SELECT coalesce(max(key), 0) - count(*) FROM runs

-- name: count_by_status
SELECT status, count(*) FROM runs GROUP BY status

-- name: list_of_status
SELECT header, snapshot, owner, fence, created_at, key FROM runs
WHERE status = ? AND (created_at, key) < (?, ?) ORDER BY created_at DESC, key DESC LIMIT ?

-- name: list_of_session
SELECT header, snapshot, owner, fence, created_at, key FROM runs
WHERE session = ? AND (created_at, key) < (?, ?) ORDER BY created_at DESC, key DESC LIMIT ?

-- name: list_of_status_and_session
SELECT header, snapshot, owner, fence, created_at, key FROM runs
WHERE status = ? AND session = ? AND (created_at, key) < (?, ?) ORDER BY created_at DESC, key DESC LIMIT ?

-- name: list_of_living
-- Those that have not ended are few; they are found by their status and put in order.
SELECT header, snapshot, owner, fence, created_at, key FROM runs
WHERE status IN ('created', 'planning', 'executing', 'verifying') AND (created_at, key) < (?, ?)
ORDER BY created_at DESC, key DESC LIMIT ?

-- name: list_of_tool
SELECT r.header, r.snapshot, r.owner, r.fence, t.created_at, t.run
FROM tools_of_runs t JOIN runs r ON r.key = t.run
WHERE t.tool = ? AND (t.created_at, t.run) < (?, ?) ORDER BY t.created_at DESC, t.run DESC LIMIT ?

-- name: add_tool_of_run
INSERT OR IGNORE INTO tools_of_runs (tool, created_at, run) VALUES (?, ?, ?)

-- name: forget_tools
DELETE FROM tools_of_runs WHERE run = ?

-- name: last_change
SELECT (SELECT coalesce(max(id), 0) FROM events), (SELECT coalesce(max(key), 0) FROM runs)

-- name: changed
-- The runs that have new events, or are new.
SELECT header, snapshot, owner, fence FROM runs
WHERE key IN (SELECT run FROM events WHERE id > ? UNION SELECT key FROM runs WHERE key > ?)
ORDER BY created_at DESC, key DESC LIMIT ?

-- name: owned
-- The newest runs that a process has: it may have died, which is no event.
SELECT header, snapshot, owner, fence FROM runs WHERE owner IS NOT NULL ORDER BY key DESC LIMIT ?

-- name: meta
SELECT value FROM meta WHERE name = ?

-- name: set_meta
INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- Moving runs out and in, see portable.py and staging.py.

-- name: oldest
SELECT key FROM runs ORDER BY created_at, id

-- name: whole
SELECT header, snapshot, owner, fence, first, base, origin FROM runs WHERE key = ?

-- name: head
SELECT key, header, first, base FROM runs WHERE id = ?

-- name: owning
SELECT id, host, pid, until, 0 FROM owners WHERE id IN (SELECT owner FROM runs WHERE owner IS NOT NULL)

-- name: hold_still
-- Nobody else can write while this transaction lasts.
SELECT 1

-- name: drop_run
DELETE FROM runs WHERE key = ?

-- name: drop_events
DELETE FROM events WHERE run = ?

-- What comes in is staged in a temporary database of its own, with the tables that follow. The events of a run have
-- the ids above `start` up to `stop`; `known` is the key that the run has in the store already.

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
-- No outcome: the call counts as in doubt. A completed run needs none.
SELECT r.key, m.key, m.name, x'' FROM staged_memos m JOIN staged_runs r ON r.number = m.run
WHERE r.known IS NULL AND r.status <> 'completed' ORDER BY m.id

-- name: staged_tools
SELECT t.tool, r.created_at, r.key FROM staged_tools t JOIN staged_runs r ON r.number = t.run WHERE r.known IS NULL

-- name: put_run
INSERT INTO runs (
    key, id, session, status, created_at, touched_at, header, snapshot, first, base, fence, cancel, origin
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- Retention, see retention.py.

-- name: old
SELECT created_at, key, id FROM runs
WHERE created_at < ? AND touched_at < ? AND (created_at, key) > (?, ?) ORDER BY created_at, key LIMIT ?

-- name: finished
SELECT created_at, key, id FROM runs
WHERE status IN ('completed', 'failed', 'cancelled') AND (created_at, key) > (?, ?) ORDER BY created_at, key LIMIT ?

-- name: surplus
SELECT id FROM runs WHERE status IN ('completed', 'failed', 'cancelled') ORDER BY created_at, key
LIMIT min(
    ?, max(0, (SELECT count(*) FROM runs WHERE status IN ('completed', 'failed', 'cancelled')) - ?)
)

-- name: too_many
-- The first event to keep, if there are more than so many.
WITH given (run, most) AS (VALUES (?, ?))
SELECT keep FROM (
    SELECT (SELECT max(sequence) FROM events WHERE events.run = given.run) + 1 - given.most AS keep, runs.first AS first
    FROM given JOIN runs ON runs.key = given.run
) WHERE keep > first

-- name: too_heavy
-- The first event to keep, if all weigh more than so much.
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

-- name: drop_first_events
DELETE FROM events WHERE run = ? AND sequence < ?

-- name: set_base
UPDATE runs SET first = ?, base = ? WHERE key = ?

-- name: beyond
-- The oldest, while the database has more bytes in use than so many; how many of them must go is seen as they go.
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

-- name: pruned_at
SELECT value FROM meta WHERE name = 'pruned_at'

-- name: set_pruned_at
INSERT INTO meta (name, value) VALUES ('pruned_at', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- What processes show of their tools, see board.py. The tables are described in 002_board.sql.

-- name: put_process
INSERT OR REPLACE INTO processes (id, host, pid, kind, name, started_at, at, until, seen, servers)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_tool
INSERT OR REPLACE INTO tools (process, name, entry) VALUES (?, ?, ?)

-- name: drop_tool
DELETE FROM tools WHERE process = ? AND name = ?

-- name: put_detail
INSERT OR REPLACE INTO details (process, name, detail) VALUES (?, ?, ?)

-- name: drop_detail
DELETE FROM details WHERE process = ? AND name = ?

-- name: drop_details_of_process
DELETE FROM details WHERE process = ?

-- name: details_of_name
SELECT process, detail FROM details WHERE name = ?

-- name: drop_process
DELETE FROM processes WHERE id = ?

-- name: drop_tools_of_process
DELETE FROM tools WHERE process = ?

-- name: processes
SELECT id, host, pid, kind, name, started_at, at, until, seen, servers FROM processes ORDER BY started_at, id

-- name: versions
SELECT id, at, seen FROM processes ORDER BY id

-- name: process_ids
SELECT id FROM processes

-- name: tools
SELECT process, entry FROM tools

-- name: tools_of_name
SELECT process, entry FROM tools WHERE name = ?

-- name: tool_names
SELECT process, name FROM tools

-- name: orders
SELECT tool, state, number, reset FROM orders WHERE number > ? ORDER BY number

-- name: last_order
SELECT coalesce(max(number), 0) FROM orders

-- name: put_order
INSERT INTO orders (tool, state, number, reset, at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (tool) DO UPDATE SET
    state = excluded.state, number = excluded.number, reset = max(reset, excluded.reset), at = excluded.at

-- name: drop_old_orders
-- The last one stays, so that no number is given twice.
DELETE FROM orders WHERE state IS NULL AND at < ? AND number < (SELECT max(number) FROM orders)

-- The queue, see queue.py. Its columns are described in 003_queue.sql. Lists are given as JSON.

-- name: queue_run
UPDATE runs SET target = ?, priority = ? WHERE key = ?

-- name: next_queued
SELECT id, priority, created_at, key FROM runs
WHERE target = ? AND status = 'created' AND fence = 0 AND session NOT IN (SELECT value FROM json_each(?))
ORDER BY priority DESC, created_at, key LIMIT 1

-- name: next_released
-- Begun, and given back by whoever had it; the oftener it has changed hands, the longer it rests.
SELECT id FROM runs
WHERE target = ? AND fence > 0 AND status IN ('created', 'planning', 'executing', 'verifying') AND owner IS NULL
    AND touched_at + CASE WHEN fence < 4 THEN 0 WHEN fence > 12 THEN 300000 ELSE 1000 << (fence - 4) END <= ?
    AND session NOT IN (SELECT value FROM json_each(?))
ORDER BY key LIMIT 1

-- name: next_abandoned
-- Begun by somebody who is not among the living.
SELECT id FROM runs
WHERE target = ? AND fence > 0 AND status IN ('created', 'planning', 'executing', 'verifying') AND owner IS NOT NULL
    AND touched_at + CASE WHEN fence < 4 THEN 0 WHEN fence > 12 THEN 300000 ELSE 1000 << (fence - 4) END <= ?
    AND session NOT IN (SELECT value FROM json_each(?)) AND owner NOT IN (SELECT value FROM json_each(?))
ORDER BY key LIMIT 1

-- name: any_begun
-- Whether a run was begun and has nobody among the living, rested or not.
SELECT 1 FROM runs
WHERE target = ? AND fence > 0 AND status IN ('created', 'planning', 'executing', 'verifying')
    AND (owner IS NULL OR owner NOT IN (SELECT value FROM json_each(?)))
LIMIT 1

-- name: sessions_at_work
SELECT session, owner, count(*) FROM runs WHERE owner IS NOT NULL AND target IS NOT NULL GROUP BY session, owner

-- name: count_queued
SELECT target, count(*) FROM runs
WHERE target IS NOT NULL AND status = 'created' AND fence = 0 GROUP BY target ORDER BY target
