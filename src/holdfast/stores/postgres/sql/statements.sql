-- Every statement of a store on PostgreSQL, by the names that embedded stores have for them. The tables, and who writes
-- them, are described in 001_runs.sql. `holdfast.` is the schema: it is always named, as nobody knows the search path.

-- name: new_keys
SELECT nextval('holdfast.run_keys') FROM generate_series(1, $1::bigint)

-- name: load
-- A run, and what keys its calls, whether there is such a run or not: somebody may have made all tables anew.
SELECT key, header, snapshot, touched_at, first, owner, fence, cancel, origin, version,
    (SELECT value FROM holdfast.meta WHERE name = 'secret')
FROM (VALUES ($1::text)) AS wanted (id) LEFT JOIN holdfast.runs USING (id)

-- name: lock_runs
-- Before a group is made again: nobody else writes to these runs until it is done. In order, so that nobody waits in a
-- circle.
SELECT key FROM holdfast.runs WHERE key = ANY ($1::bigint[]) ORDER BY key FOR UPDATE

-- name: hurry
-- Whoever is stopped in the middle of it must not keep others waiting.
SELECT set_config('idle_in_transaction_session_timeout', '5000', true)

-- name: wait_at_most
-- So many milliseconds for what another holds, in this transaction.
SELECT set_config('lock_timeout', $1, true)

-- name: settle
-- The same for all of a connection that is ours alone; and a host of ours that is gone is noticed within half a minute.
SELECT set_config('lock_timeout', $1, false), set_config('tcp_keepalives_idle', '10', false),
    set_config('tcp_keepalives_interval', '5', false), set_config('tcp_keepalives_count', '3', false)

-- name: end_stopped
-- Connections of ours that hold rows of our tables while their process is frozen or cut off: the server waits for the
-- rest of what they send, which no timeout ends before PostgreSQL 17. What they have not committed is undone.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity a
WHERE datname = current_database() AND usename = session_user AND application_name = current_setting('application_name')
    AND wait_event = 'ClientRead' AND state_change < clock_timestamp() - $2::bigint * interval '1 millisecond'
    AND EXISTS (
        SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        WHERE l.pid = a.pid AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
            AND c.relnamespace = $1::text::regnamespace
    )

-- name: confirm
-- What was only looked at is still so.
SELECT holdfast.agreed(count(*), cardinality($1::bigint[]))
FROM unnest($1::bigint[], $2::bigint[]) AS n (key, version)
JOIN holdfast.runs r ON r.key = n.key AND r.version = n.version

-- name: add_runs
INSERT INTO holdfast.runs (
    key, id, session, status, created_at, touched_at, header, snapshot, owner, fence, cancel, origin, target, priority,
    weight, version, ended
)
SELECT n.*, $16::bigint,
    CASE WHEN status IN ('completed', 'failed', 'cancelled') THEN pg_current_xact_id()::text::bigint END
FROM unnest(
    $1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::bytea[], $9::text[],
    $10::bigint[], $11::text[], $12::text[], $13::text[], $14::bigint[], $15::bigint[]
) AS n (
    key, id, session, status, created_at, touched_at, header, snapshot, owner, fence, cancel, origin, target, priority,
    weight
)

-- name: change_runs
-- Locked in order first, so that two groups that write to the same runs do not wait for each other in a circle.
WITH n AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::text[], $6::text[], $7::bigint[], $8::text[],
        $9::bigint[]
    ) AS n (key, version, touched_at, snapshot, status, owner, fence, cancel, weight)
), locked AS MATERIALIZED (
    SELECT r.key FROM n JOIN holdfast.runs r ON r.key = n.key AND r.version = n.version ORDER BY r.key FOR UPDATE OF r
), written AS (
    UPDATE holdfast.runs r SET
        touched_at = n.touched_at, snapshot = n.snapshot, status = n.status, owner = n.owner, fence = n.fence,
        cancel = n.cancel, weight = r.weight + n.weight, version = $10::bigint,
        changed = pg_current_xact_id()::text::bigint,
        ended = CASE WHEN n.status IN ('completed', 'failed', 'cancelled') THEN pg_current_xact_id()::text::bigint END
    FROM n WHERE r.key = n.key AND r.version = n.version AND (SELECT count(*) FROM locked) >= 0
    RETURNING 1
)
SELECT holdfast.agreed(count(*), cardinality($1::bigint[])) FROM written

-- name: change_run
-- All that a group writes, where that is one call of one run: a transaction by itself. Nothing is added where somebody
-- else has written, so that it ends with that, and not with an event that is there already.
WITH written AS (
    UPDATE holdfast.runs SET
        touched_at = $3::bigint, snapshot = $4::bytea, status = $5::text, owner = $6::text, fence = $7::bigint,
        cancel = $8::text, weight = weight + $9::bigint, version = $10::bigint,
        changed = pg_current_xact_id()::text::bigint,
        ended = CASE WHEN $5::text IN ('completed', 'failed', 'cancelled')
                THEN pg_current_xact_id()::text::bigint END
    WHERE key = $1::bigint AND version = $2::bigint
    RETURNING 1
), logged AS (
    INSERT INTO holdfast.events (run, sequence, at, type, late, payload, by)
    SELECT $1::bigint, n.*, $10::bigint
    FROM written, unnest($11::bigint[], $12::bigint[], $13::text[], $14::bigint[], $15::text[]) AS n
)
SELECT holdfast.agreed(count(*), 1) FROM written

-- name: change_header
UPDATE holdfast.runs SET header = $1 WHERE key = $2

-- name: add_events
INSERT INTO holdfast.events (run, sequence, at, type, late, payload, by)
SELECT n.*, $7::bigint FROM unnest(
    $1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::text[]
) AS n

-- name: add_event
INSERT INTO holdfast.events (run, sequence, at, type, late, payload, by) VALUES ($1, $2, $3, $4, $5, $6, 0)

-- name: add_memos
INSERT INTO holdfast.memos (run, key, name, outcome)
SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bytea[])
ON CONFLICT (run, key) DO UPDATE SET name = excluded.name, outcome = excluded.outcome

-- name: add_memo
INSERT INTO holdfast.memos (run, key, name, outcome) VALUES ($1, $2, $3, $4)
ON CONFLICT (run, key) DO UPDATE SET name = excluded.name, outcome = excluded.outcome

-- name: version_of
-- Waits until a transaction that may still be at work on it is over.
SELECT version FROM holdfast.runs WHERE key = $1 FOR UPDATE

-- name: writer_of
SELECT by FROM holdfast.events WHERE run = $1 AND sequence = $2

-- name: ring
-- Sent after a commit, alone: PostgreSQL lets only one transaction at a time notify until it is on disk, and in that of
-- the writes themselves this would have all processes wait for each other.
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)

-- name: is_locked
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND (classid::bigint << 32) | objid::bigint = $1::bigint
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)

-- name: forget_memos
DELETE FROM holdfast.memos WHERE run = $1

-- name: keep_memo
INSERT INTO holdfast.memos (run, key, name, outcome) VALUES ($1, $2, $3, $4) ON CONFLICT (run, key) DO NOTHING

-- name: memos
SELECT key, name, outcome FROM holdfast.memos WHERE run = $1

-- name: ended
-- What the calls of a run gave, where its events say it; see said.py.
SELECT payload FROM holdfast.events WHERE run = $1 AND type IN ('tool_ended', 'step_ended') ORDER BY sequence

-- name: owner
SELECT id, host, pid, until, locked FROM holdfast.owners WHERE id = $1

-- name: keep_owner
INSERT INTO holdfast.owners (id, host, pid, until, locked) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (id) DO UPDATE SET until = greatest(owners.until, excluded.until), locked = excluded.locked

-- name: drop_owner
DELETE FROM holdfast.owners WHERE id = $1

-- name: drop_old_owners
DELETE FROM holdfast.owners o
WHERE until < $1 AND NOT EXISTS (SELECT FROM holdfast.runs r WHERE r.owner = o.id)

-- name: cancels
SELECT id, cancel FROM holdfast.runs WHERE owner = $1 AND cancel IS NOT NULL

-- name: remembered
SELECT key, header, snapshot, origin FROM holdfast.runs WHERE id = $1

-- name: show
SELECT header, snapshot, owner, fence FROM holdfast.runs WHERE id = $1

-- name: page_of
-- A run and some of its events, as both are at one moment; one row without an event if there are none. One row more than
-- asked for says whether there are more.
SELECT r.first, r.status, e.sequence, e.at, e.type, e.late, e.payload
FROM holdfast.runs r LEFT JOIN holdfast.events e ON e.run = r.key AND e.sequence > $1
WHERE r.id = $2 ORDER BY e.sequence LIMIT $3

-- name: page
SELECT sequence, at, type, late, payload FROM holdfast.events
WHERE run = $1 AND sequence > $2 ORDER BY sequence LIMIT $3

-- name: place
SELECT created_at, key FROM holdfast.runs WHERE id = $1

-- name: list
SELECT header, snapshot, owner, fence, created_at, key FROM holdfast.runs
WHERE (created_at, key) < ($1, $2) ORDER BY created_at DESC, key DESC LIMIT $3

-- name: missing
SELECT coalesce(max(key), 0) - count(*) FROM holdfast.runs

-- name: count_by_status
SELECT status, count(*) FROM holdfast.runs GROUP BY status

-- name: list_of_status
SELECT header, snapshot, owner, fence, created_at, key FROM holdfast.runs
WHERE status = $1 AND (created_at, key) < ($2, $3) ORDER BY created_at DESC, key DESC LIMIT $4

-- name: list_of_session
-- A session may have any length, so it is found by a hash; of another one that has the same, whoever reads takes care.
SELECT header, snapshot, owner, fence, created_at, key FROM holdfast.runs
WHERE hashtextextended(session, 0) = hashtextextended($1 COLLATE "C", 0) AND (created_at, key) < ($2, $3)
ORDER BY created_at DESC, key DESC LIMIT $4

-- name: list_of_status_and_session
SELECT header, snapshot, owner, fence, created_at, key FROM holdfast.runs
WHERE status = $1 AND hashtextextended(session, 0) = hashtextextended($2 COLLATE "C", 0)
    AND (created_at, key) < ($3, $4) ORDER BY created_at DESC, key DESC LIMIT $5

-- name: list_of_living
-- Those that have not ended are few; they are found by their status and put in order.
SELECT header, snapshot, owner, fence, created_at, key FROM holdfast.runs
WHERE status IN ('created', 'planning', 'executing', 'verifying') AND (created_at, key) < ($1, $2)
ORDER BY created_at DESC, key DESC LIMIT $3

-- name: list_of_tool
SELECT r.header, r.snapshot, r.owner, r.fence, t.created_at, t.run
FROM holdfast.tools_of_runs t JOIN holdfast.runs r ON r.key = t.run
WHERE t.tool = sha256(convert_to($1, 'UTF8')) AND (t.created_at, t.run) < ($2, $3)
ORDER BY t.created_at DESC, t.run DESC LIMIT $4

-- name: add_tool_of_run
INSERT INTO holdfast.tools_of_runs (tool, created_at, run) VALUES (sha256(convert_to($1, 'UTF8')), $2, $3)
ON CONFLICT DO NOTHING

-- name: forget_tools
DELETE FROM holdfast.tools_of_runs WHERE run = $1

-- name: last_change
-- Everything below the first number was committed by now, whatever else is going on; what is not has it or a higher one.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, (SELECT coalesce(max(key), 0) FROM holdfast.runs)

-- name: changed
-- The runs that have new events, or are new; some of them may have been seen.
SELECT header, snapshot, owner, fence FROM holdfast.runs
WHERE key IN (
    SELECT key FROM holdfast.runs
    WHERE status IN ('created', 'planning', 'executing', 'verifying') AND changed >= $1
    UNION SELECT key FROM holdfast.runs WHERE ended >= $1
    UNION SELECT key FROM holdfast.runs WHERE key > $2
)
ORDER BY created_at DESC, key DESC LIMIT $3

-- name: owned
-- The newest runs that a process has: it may have died, which is no event.
SELECT header, snapshot, owner, fence FROM holdfast.runs WHERE owner IS NOT NULL ORDER BY key DESC LIMIT $1

-- name: meta
SELECT value FROM holdfast.meta WHERE name = $1

-- name: set_meta
INSERT INTO holdfast.meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: pruned_at
SELECT value::bigint FROM holdfast.meta WHERE name = 'pruned_at'

-- name: set_pruned_at
INSERT INTO holdfast.meta (name, value) VALUES ('pruned_at', $1::bigint::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- Moving runs out and in, see portable.py and staging.py.

-- name: oldest
SELECT key FROM holdfast.runs ORDER BY created_at, id

-- name: whole
SELECT header, snapshot, owner, fence, first, base, origin FROM holdfast.runs WHERE key = $1

-- name: head
SELECT key, header, first, base FROM holdfast.runs WHERE id = $1

-- name: owning
SELECT id, host, pid, until, locked FROM holdfast.owners o
WHERE EXISTS (SELECT FROM holdfast.runs r WHERE r.owner = o.id)

-- name: hold_still
-- The one write that nobody else may write beside: everything is about to be replaced.
LOCK TABLE holdfast.runs IN SHARE ROW EXCLUSIVE MODE

-- name: drop_run
DELETE FROM holdfast.runs WHERE key = $1

-- name: drop_events
DELETE FROM holdfast.events WHERE run = $1

-- name: put_run
-- After its events, by which it is weighed.
INSERT INTO holdfast.runs (
    key, id, session, status, created_at, touched_at, header, snapshot, first, base, fence, cancel, origin, version,
    ended, weight
) VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 0,
    CASE WHEN $4 IN ('completed', 'failed', 'cancelled') THEN pg_current_xact_id()::text::bigint END,
    (SELECT coalesce(sum(octet_length(payload) + 64), 0)::bigint FROM holdfast.events WHERE run = $1)
)

-- Retention, see retention.py.

-- name: old
SELECT created_at, key, id FROM holdfast.runs
WHERE created_at < $1 AND touched_at < $2 AND (created_at, key) > ($3, $4) ORDER BY created_at, key LIMIT $5

-- name: finished
SELECT created_at, key, id FROM holdfast.runs
WHERE status IN ('completed', 'failed', 'cancelled') AND (created_at, key) > ($1, $2)
ORDER BY created_at, key LIMIT $3

-- name: surplus
SELECT id FROM holdfast.runs WHERE status IN ('completed', 'failed', 'cancelled') ORDER BY created_at, key
LIMIT least($1::bigint, greatest(0, (
    SELECT count(*) FROM holdfast.runs WHERE status IN ('completed', 'failed', 'cancelled')
) - $2::bigint))

-- name: too_many
-- The first event to keep, if there are more than so many.
SELECT keep FROM (
    SELECT (SELECT max(sequence) FROM holdfast.events e WHERE e.run = r.key) + 1 - $2::bigint AS keep, r.first
    FROM holdfast.runs r WHERE r.key = $1
) AS found WHERE keep > first

-- name: too_heavy
-- The first event to keep, if all weigh more than so much.
SELECT keep FROM (
    SELECT max(sequence) + 1 AS keep FROM (
        SELECT sequence, sum(octet_length(payload)) OVER (ORDER BY sequence DESC) AS weight
        FROM holdfast.events WHERE run = $1
    ) AS weighed WHERE weight > $2::bigint
) AS found WHERE keep IS NOT NULL

-- name: beyond
-- The oldest that must go so that all weigh no more than so much. PostgreSQL gives the space of what was deleted to what
-- comes next, and its files do not tell how much of them is in use: what the rows hold is counted.
SELECT id FROM (
    SELECT id, status, created_at, key, weight AS own,
        sum(weight) OVER () - $1::bigint AS excess,
        sum(weight) FILTER (WHERE status IN ('completed', 'failed', 'cancelled'))
            OVER (ORDER BY created_at, key ROWS UNBOUNDED PRECEDING) AS up_to
    FROM (
        SELECT id, status, created_at, key,
            weight + octet_length(header) + octet_length(snapshot) + coalesce(octet_length(base), 0) + 300 AS weight
        FROM holdfast.runs
    ) AS each
) AS weighed
WHERE status IN ('completed', 'failed', 'cancelled') AND up_to - own < excess ORDER BY created_at, key LIMIT $2

-- name: size
SELECT coalesce(sum(
    weight + octet_length(header) + octet_length(snapshot) + coalesce(octet_length(base), 0) + 300
), 0)::bigint FROM holdfast.runs

-- name: is_enough
-- All that were found must go.
SELECT $1::bigint < 0

-- name: prunable
SELECT key, status, touched_at, header, first, base, owner, fence,
    coalesce((SELECT max(sequence) + 1 FROM holdfast.events e WHERE e.run = r.key), first)
FROM holdfast.runs r WHERE id = $1 FOR UPDATE

-- name: drop_first_events
DELETE FROM holdfast.events WHERE run = $1 AND sequence < $2

-- name: set_base
UPDATE holdfast.runs SET first = $1, base = $2, version = version + 1, weight = (
    SELECT coalesce(sum(octet_length(payload) + 64), 0)::bigint FROM holdfast.events WHERE run = $3
) WHERE key = $3

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
    state = excluded.state, number = excluded.number, reset = greatest(orders.reset, excluded.reset), at = excluded.at

-- name: drop_old_orders
-- The last one stays, so that no number is given twice.
DELETE FROM holdfast.orders
WHERE state IS NULL AND at < $1 AND number < (SELECT max(number) FROM holdfast.orders)

-- The queue, see queue.py. Lists are given as JSON.

-- name: hold_queue
SELECT pg_advisory_xact_lock(hashtextextended('holdfast queue', 0))

-- name: next_queued
SELECT id, priority, created_at, key FROM holdfast.runs
WHERE target = $1 AND status = 'created' AND fence = 0
    AND session NOT IN (SELECT jsonb_array_elements_text($2::jsonb))
ORDER BY priority DESC, created_at, key LIMIT 1

-- name: next_released
-- Begun, and given back by whoever had it; the oftener it has changed hands, the longer it rests.
SELECT id FROM holdfast.runs
WHERE target = $1 AND fence > 0 AND status IN ('created', 'planning', 'executing', 'verifying') AND owner IS NULL
    AND touched_at + CASE WHEN fence < 4 THEN 0 WHEN fence > 12 THEN 300000 ELSE 1000::bigint << (fence - 4)::int END
        <= $2
    AND session NOT IN (SELECT jsonb_array_elements_text($3::jsonb))
ORDER BY key LIMIT 1

-- name: next_abandoned
-- Begun by somebody who is not among the living.
SELECT id FROM holdfast.runs
WHERE target = $1 AND fence > 0 AND status IN ('created', 'planning', 'executing', 'verifying') AND owner IS NOT NULL
    AND touched_at + CASE WHEN fence < 4 THEN 0 WHEN fence > 12 THEN 300000 ELSE 1000::bigint << (fence - 4)::int END
        <= $2
    AND session NOT IN (SELECT jsonb_array_elements_text($3::jsonb))
    AND owner NOT IN (SELECT jsonb_array_elements_text($4::jsonb))
ORDER BY key LIMIT 1

-- name: any_begun
-- Whether a run was begun and has nobody among the living, rested or not.
SELECT 1 FROM holdfast.runs
WHERE target = $1 AND fence > 0 AND status IN ('created', 'planning', 'executing', 'verifying')
    AND (owner IS NULL OR owner NOT IN (SELECT jsonb_array_elements_text($2::jsonb)))
LIMIT 1

-- name: sessions_at_work
SELECT session, owner, count(*) FROM holdfast.runs
WHERE owner IS NOT NULL AND target IS NOT NULL GROUP BY session, owner

-- name: count_queued
SELECT target, count(*) FROM holdfast.runs
WHERE target IS NOT NULL AND status = 'created' AND fence = 0 GROUP BY target ORDER BY target
