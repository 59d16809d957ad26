-- The statements that are the same for all stores, by name, as PostgreSQL takes them: `holdfast.` is its schema, which
-- is always named, as the search path is unknown. For SQLite the schema is removed, and $1, $2 … become ?, so they
-- stand here in their order and once each: some releases of Python 3.12 warn of ?1. json_list is replaced by the
-- function that each of the two has for it. Statements that differ are in a statements.sql for each; the tables, and
-- who writes them, are described in 001_runs.sql and those that follow.

-- name: change_header
UPDATE holdfast.runs SET header = $1 WHERE key = $2

-- name: forget_memos
DELETE FROM holdfast.memos WHERE run = $1

-- name: first_memo
SELECT key, length(outcome) FROM holdfast.memos WHERE run = $1 ORDER BY key LIMIT 1

-- name: forget_memo
DELETE FROM holdfast.memos WHERE run = $1 AND key = $2

-- name: leftovers
-- The runs, completed or deleted, that still have memos, as ledger.py has noted; PostgreSQL has none, as it deletes all
-- memos at once.
SELECT CAST(value AS BIGINT) FROM holdfast.meta WHERE name LIKE 'memos of %'

-- name: is_forgotten
SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM holdfast.runs WHERE key = $1 AND status <> 'completed')

-- name: drop_meta
DELETE FROM holdfast.meta WHERE name = $1

-- name: keep_memo
INSERT INTO holdfast.memos (run, key, name, outcome) VALUES ($1, $2, $3, $4) ON CONFLICT (run, key) DO NOTHING

-- name: has_memo
SELECT 1 FROM holdfast.memos WHERE run = $1 AND key = $2

-- name: memos
SELECT key, name, outcome FROM holdfast.memos WHERE run = $1

-- name: recalled
-- The results of a run's calls, where its events contain them, see said.py; and the run's budget warnings.
SELECT type, payload FROM holdfast.events
WHERE run = $1 AND type IN ('tool_ended', 'step_ended', 'budget_warning') ORDER BY sequence

-- name: drop_owner
DELETE FROM holdfast.owners WHERE id = $1

-- name: drop_old_owners
DELETE FROM holdfast.owners
WHERE until < $1 AND NOT EXISTS (SELECT 1 FROM holdfast.runs r WHERE r.owner = owners.id)

-- name: excuse_owners
UPDATE holdfast.owners SET until = until + $1 WHERE until > $2 AND until <= $3

-- name: cancels
SELECT id, cancel FROM holdfast.runs WHERE owner = $1 AND cancel IS NOT NULL

-- name: remembered
SELECT key, header, snapshot, origin FROM holdfast.runs WHERE id = $1

-- name: show
SELECT header, snapshot, owner, fence FROM holdfast.runs WHERE id = $1

-- name: page
SELECT sequence, at, type, late, payload FROM holdfast.events
WHERE run = $1 AND sequence > $2 ORDER BY sequence LIMIT $3

-- name: place
SELECT created_at, key FROM holdfast.runs WHERE id = $1

-- name: named_like
-- The ids from one up to another, the newest first; the + keeps the planner from the index on created_at, as these runs
-- are few, and found by their ids.
SELECT id FROM holdfast.runs WHERE id >= $1 AND id < $2 ORDER BY +created_at DESC, +key DESC

-- name: list
SELECT header, snapshot, owner, fence, created_at, key FROM holdfast.runs
WHERE (created_at, key) < ($1, $2) ORDER BY created_at DESC, key DESC LIMIT $3

-- name: missing
-- How many keys below the last one no run has: in one statement, as runs are added and deleted meanwhile.
SELECT coalesce(max(key), 0) - count(*) FROM holdfast.runs

-- name: count_by_status
SELECT status, count(*) FROM holdfast.runs GROUP BY status

-- name: list_of_status
SELECT header, snapshot, owner, fence, created_at, key FROM holdfast.runs
WHERE status = $1 AND (created_at, key) < ($2, $3) ORDER BY created_at DESC, key DESC LIMIT $4

-- name: list_of_living
-- Runs that have not ended are few; they are found by their status and then sorted.
SELECT header, snapshot, owner, fence, created_at, key FROM holdfast.runs
WHERE status IN ('created', 'planning', 'executing', 'verifying') AND (created_at, key) < ($1, $2)
ORDER BY created_at DESC, key DESC LIMIT $3

-- name: forget_tools
DELETE FROM holdfast.tools_of_runs WHERE run = $1

-- name: owned
-- The newest runs that have an owner: it may have died, which writes no event. They are few among many: +key keeps the
-- planner from looking through all runs for them in the order of their keys.
SELECT header, snapshot, owner, fence FROM holdfast.runs WHERE owner IS NOT NULL ORDER BY +key DESC LIMIT $1

-- name: meta
SELECT value FROM holdfast.meta WHERE name = $1

-- name: set_meta
INSERT INTO holdfast.meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: pruned_at
SELECT CAST(value AS BIGINT) FROM holdfast.meta WHERE name = 'pruned_at'

-- Export and import, see portable.py, records.py and staging.py.

-- name: oldest
SELECT key FROM holdfast.runs ORDER BY created_at, id

-- name: whole
SELECT header, snapshot, owner, fence, first, base, origin FROM holdfast.runs WHERE key = $1

-- name: head
SELECT key, header, first, base FROM holdfast.runs WHERE id = $1

-- name: drop_run
DELETE FROM holdfast.runs WHERE key = $1

-- name: drop_events
DELETE FROM holdfast.events WHERE run = $1

-- Retention, see retention.py.

-- name: old
SELECT created_at, key, id FROM holdfast.runs
WHERE created_at < $1 AND touched_at < $2 AND (created_at, key) > ($3, $4) ORDER BY created_at, key LIMIT $5

-- name: finished
SELECT created_at, key, id FROM holdfast.runs
WHERE status IN ('completed', 'failed', 'cancelled') AND (created_at, key) > ($1, $2)
ORDER BY created_at, key LIMIT $3

-- name: too_many
-- The first event to keep, if there are more than the number given.
WITH found AS (
    SELECT (SELECT max(sequence) FROM holdfast.events e WHERE e.run = r.key) + 1 AS next, r.first
    FROM holdfast.runs r WHERE r.key = $1
), given AS (SELECT CAST($2 AS BIGINT) AS most)
SELECT next - most FROM found, given WHERE next - most > first

-- name: drop_first_events
DELETE FROM holdfast.events WHERE run = $1 AND sequence < $2

-- What processes show of their tools, see board.py.

-- name: put_process
INSERT INTO holdfast.processes (id, host, pid, kind, name, started_at, at, until, seen, servers)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (id) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, kind = excluded.kind, name = excluded.name,
    started_at = excluded.started_at, at = excluded.at, until = excluded.until, seen = excluded.seen,
    servers = excluded.servers

-- name: put_tool
INSERT INTO holdfast.tools (process, name, entry) VALUES ($1, $2, $3)
ON CONFLICT (process, name) DO UPDATE SET entry = excluded.entry

-- name: drop_tool
DELETE FROM holdfast.tools WHERE process = $1 AND name = $2

-- name: put_detail
INSERT INTO holdfast.details (process, name, detail) VALUES ($1, $2, $3)
ON CONFLICT (name, process) DO UPDATE SET detail = excluded.detail

-- name: drop_detail
DELETE FROM holdfast.details WHERE process = $1 AND name = $2

-- name: drop_details_of_process
DELETE FROM holdfast.details WHERE process = $1

-- name: details_of_name
SELECT process, detail FROM holdfast.details WHERE name = $1

-- name: end_process
UPDATE holdfast.processes SET until = 0 WHERE id = $1

-- name: drop_process
DELETE FROM holdfast.processes WHERE id = $1

-- name: drop_tools_of_process
DELETE FROM holdfast.tools WHERE process = $1

-- name: processes
SELECT id, host, pid, kind, name, started_at, at, until, seen, servers FROM holdfast.processes ORDER BY started_at, id

-- name: versions
SELECT id, at, seen FROM holdfast.processes ORDER BY id

-- name: process_ids
SELECT id FROM holdfast.processes

-- name: tools
SELECT process, entry FROM holdfast.tools

-- name: tools_of_name
SELECT process, entry FROM holdfast.tools WHERE name = $1

-- name: tool_names
SELECT process, name FROM holdfast.tools

-- name: orders
SELECT tool, state, number, reset FROM holdfast.orders WHERE number > $1 ORDER BY number

-- name: last_order
SELECT coalesce(max(number), 0) FROM holdfast.orders

-- name: put_order
INSERT INTO holdfast.orders (tool, state, number, reset, at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tool) DO UPDATE SET
    state = excluded.state, number = excluded.number, at = excluded.at,
    reset = CASE WHEN excluded.reset > orders.reset THEN excluded.reset ELSE orders.reset END

-- name: drop_old_orders
-- The last one stays, so that no number is given twice.
DELETE FROM holdfast.orders
WHERE state IS NULL AND at < $1 AND number < (SELECT max(number) FROM holdfast.orders)

-- The queue, see queue.py. Lists are given as JSON.

-- name: next_queued
SELECT id, priority, created_at, key FROM holdfast.runs
WHERE target = $1 AND status = 'created' AND fence = 0 AND session NOT IN (SELECT value FROM json_list($2))
ORDER BY priority DESC, created_at, key LIMIT 1

-- name: next_released
-- A run that has begun and was given back by its owner. The more owners it has had, the longer it rests first, unless
-- it was last written so far in the future that the clock must have gone back since.
SELECT id FROM holdfast.runs
WHERE target = $1 AND fence > 0 AND status IN ('created', 'planning', 'executing', 'verifying') AND owner IS NULL
    AND (fence < 4 OR $2 NOT BETWEEN touched_at - 300000 AND touched_at - 1 + CASE
        WHEN fence > 12 THEN 300000 ELSE CAST(1000 AS BIGINT) << CAST(fence - 4 AS INT)
    END)
    AND session NOT IN (SELECT value FROM json_list($3))
ORDER BY key LIMIT 1

-- name: next_abandoned
-- A run that has begun and whose owner is not in the list of living ones; it rests as above.
SELECT id FROM holdfast.runs
WHERE target = $1 AND fence > 0 AND status IN ('created', 'planning', 'executing', 'verifying') AND owner IS NOT NULL
    AND (fence < 4 OR $2 NOT BETWEEN touched_at - 300000 AND touched_at - 1 + CASE
        WHEN fence > 12 THEN 300000 ELSE CAST(1000 AS BIGINT) << CAST(fence - 4 AS INT)
    END)
    AND session NOT IN (SELECT value FROM json_list($3)) AND owner NOT IN (SELECT value FROM json_list($4))
ORDER BY key LIMIT 1

-- name: any_begun
-- Whether there is a run that has begun and has no owner in the list of living ones, rested or not.
SELECT 1 FROM holdfast.runs
WHERE target = $1 AND fence > 0 AND status IN ('created', 'planning', 'executing', 'verifying')
    AND (owner IS NULL OR owner NOT IN (SELECT value FROM json_list($2)))
LIMIT 1

-- name: sessions_at_work
-- Grouped by the owner first, as the index finds runs by owner; by the session first, all runs would be looked at.
SELECT session, owner, count(*) FROM holdfast.runs
WHERE owner IS NOT NULL AND target IS NOT NULL GROUP BY owner, session

-- name: count_queued
SELECT target, count(*) FROM holdfast.runs
WHERE target IS NOT NULL AND status = 'created' AND fence = 0 GROUP BY target ORDER BY target
