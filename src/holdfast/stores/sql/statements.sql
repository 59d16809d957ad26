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

-- name: copy_memos
INSERT OR REPLACE INTO memos (run, key, name, outcome) SELECT ?, key, name, outcome FROM memos WHERE run = ?

-- name: memos
SELECT m.key, m.name, m.outcome FROM memos m JOIN runs r ON r.key = m.run WHERE r.id = ?

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

-- name: claims
SELECT id, fence FROM runs WHERE owner = ?

-- name: find
SELECT key, first, status FROM runs WHERE id = ?

-- name: remembered
SELECT header, snapshot, origin FROM runs WHERE id = ?

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
SELECT header, snapshot, owner, fence FROM runs
WHERE (created_at, key) < (?, ?) ORDER BY created_at DESC, key DESC LIMIT ?

-- name: list_of_status
SELECT header, snapshot, owner, fence FROM runs
WHERE status = ? AND (created_at, key) < (?, ?) ORDER BY created_at DESC, key DESC LIMIT ?

-- name: list_of_session
SELECT header, snapshot, owner, fence FROM runs
WHERE session = ? AND (created_at, key) < (?, ?) ORDER BY created_at DESC, key DESC LIMIT ?

-- name: list_of_status_and_session
SELECT header, snapshot, owner, fence FROM runs
WHERE status = ? AND session = ? AND (created_at, key) < (?, ?) ORDER BY created_at DESC, key DESC LIMIT ?

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
SELECT id, host, pid, until FROM owners WHERE id IN (SELECT owner FROM runs WHERE owner IS NOT NULL)

-- name: drop_run
DELETE FROM runs WHERE key = ?

-- name: drop_events
DELETE FROM events WHERE run = ?

-- What comes in is staged in a temporary database of its own, with the tables that follow. The events of a run have
-- the ids above `start` up to `stop`; `known` is the key that the run has in the store already.

-- name: stage_runs
CREATE TABLE staged_runs (
    number INTEGER PRIMARY KEY, start, stop, id TEXT UNIQUE, session, status, created_at, touched_at, header, snapshot,
    first, base, fence, cancel, origin, known
)

-- name: stage_events
CREATE TABLE staged_events (id INTEGER PRIMARY KEY, run, sequence, at, type, late, payload)

-- name: stage_memos
CREATE TABLE staged_memos (id INTEGER PRIMARY KEY, run, key, name)

-- name: stage_run
INSERT INTO staged_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)

-- name: stage_event
INSERT INTO staged_events VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: stage_memo
INSERT INTO staged_memos (run, key, name) VALUES (?, ?, ?)

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

-- name: staged_heads
SELECT number, start, stop, id, header, first, base FROM staged_runs ORDER BY number

-- name: staged_page
SELECT sequence, at, type, late, payload FROM staged_events WHERE id > ? AND id <= ? ORDER BY id

-- name: staged_runs
SELECT ? + number, id, session, status, created_at, touched_at, header, snapshot, first, base, fence, cancel, origin
FROM staged_runs WHERE known IS NULL ORDER BY number

-- name: staged_events
SELECT ? + run, sequence, at, type, late, payload FROM staged_events
WHERE run IN (SELECT number FROM staged_runs WHERE known IS NULL) ORDER BY id

-- name: staged_memos
-- No outcome: the call counts as in doubt. A completed run needs none.
SELECT ? + run, key, name, x'' FROM staged_memos
WHERE run IN (SELECT number FROM staged_runs WHERE known IS NULL AND status <> 'completed') ORDER BY id

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

-- name: size
SELECT (p.page_count - f.freelist_count) * s.page_size
FROM pragma_page_count AS p, pragma_freelist_count AS f, pragma_page_size AS s
