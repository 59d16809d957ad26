-- The statements of a store on PostgreSQL that differ from SQLite's, by the names that embedded stores have for them;
-- the others are in ../../sql/shared.sql. The tables, and who writes them, are described in 001_runs.sql.

-- name: new_keys
-- Above all keys in use, even if the sequence was left behind: logical replication copies the rows, not the sequence.
WITH given AS MATERIALIZED (
    SELECT nextval('holdfast.run_keys') AS key FROM generate_series(1, $1::bigint)
), behind AS MATERIALIZED (
    SELECT setval('holdfast.run_keys', max(key)) FROM holdfast.runs HAVING max(key) >= (SELECT min(key) FROM given)
)
SELECT key FROM given WHERE NOT EXISTS (SELECT FROM behind)
UNION ALL SELECT nextval('holdfast.run_keys') FROM behind, generate_series(1, $1::bigint)

-- name: use_up_key
-- Nothing to do: a sequence gives no number twice.
SELECT $1::bigint

-- name: load
-- A run, and the secret that keys its calls, even if there is no such run: all tables may have been made anew.
SELECT key, header, snapshot, touched_at, first, owner, fence, cancel, origin, version,
    (SELECT value FROM holdfast.meta WHERE name = 'secret')
FROM (VALUES ($1::text)) AS wanted (id) LEFT JOIN holdfast.runs USING (id)

-- name: lock_runs
-- Before a group is made again: no other transaction writes to these runs until it is done. In order, so that no two
-- transactions deadlock.
SELECT key FROM holdfast.runs WHERE key = ANY ($1::bigint[]) ORDER BY key FOR UPDATE

-- name: hurry
-- A process that is stopped in the middle of a transaction must not keep others waiting.
SELECT set_config('idle_in_transaction_session_timeout', '5000', true)

-- name: wait_at_most
-- How many milliseconds this transaction waits for locks of others; and names without a schema are the server's own.
SELECT pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('search_path', 'pg_catalog', true)

-- name: settle
-- The same for a whole connection that is ours alone. Also: the server notices within half a minute that our host is
-- gone, and a transaction that waited for another's row sees what became of it, whatever isolation this user has set.
SELECT pg_catalog.set_config(name, value, false) FROM (VALUES
    ('search_path', 'pg_catalog'), ('lock_timeout', $1), ('default_transaction_isolation', 'read committed'),
    ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3')
) AS wanted (name, value)

-- name: end_stopped
-- Ends connections of ours that hold rows of our tables while their process is frozen or cut off: the server waits for
-- the rest of what they send, which no timeout ends before PostgreSQL 17. What they have not committed is undone.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity a
WHERE datname = current_database() AND usename = session_user AND application_name = current_setting('application_name')
    AND wait_event = 'ClientRead' AND state_change < clock_timestamp() - $2::bigint * interval '1 millisecond'
    AND EXISTS (
        SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        WHERE l.pid = a.pid AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
            AND c.relnamespace = $1::text::regnamespace
    )

-- name: confirm
-- Fails unless runs that were only read are still as they were.
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
-- The runs are locked in order first, so that two groups that write to the same runs do not deadlock.
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
-- Everything that a group writes, if that is one call of one run: a transaction by itself. No event is added if another
-- process has written, so that it fails because of that, and not because of an event that is there already.
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
-- Waits until a transaction that may still be at work on the run is over.
SELECT version FROM holdfast.runs WHERE key = $1 FOR UPDATE

-- name: writer_of
SELECT by FROM holdfast.events WHERE run = $1 AND sequence = $2

-- name: ring
-- Sent after a commit, by itself: PostgreSQL lets only one transaction at a time notify, until it is on disk; in the
-- transaction of the writes this would make all processes wait for each other.
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)

-- name: is_locked
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND (classid::bigint << 32) | objid::bigint = $1::bigint
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)

-- name: owner
SELECT id, host, pid, until, locked, awake_until FROM holdfast.owners WHERE id = $1

-- name: keep_owner
INSERT INTO holdfast.owners (id, host, pid, until, locked, awake_until) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (id) DO UPDATE SET
    until = greatest(owners.until, excluded.until), locked = excluded.locked, awake_until = excluded.awake_until

-- name: page_of
-- A run and some of its events, as both are at one moment; one row without an event if there are none. The caller asks
-- for one row more than it needs, to see whether there are more. The limit is inside the join: outside, all events that
-- follow would be read and sorted.
SELECT r.first, r.status, e.sequence, e.at, e.type, e.late, e.payload
FROM holdfast.runs r LEFT JOIN LATERAL (
    SELECT sequence, at, type, late, payload FROM holdfast.events WHERE run = r.key AND sequence > $1
    ORDER BY sequence LIMIT $3
) AS e ON true
WHERE r.id = $2 ORDER BY e.sequence

-- name: list_of_session
-- The name of a session may have any length, so it is found by a hash; the caller drops other sessions with that hash.
SELECT header, snapshot, owner, fence, created_at, key FROM holdfast.runs
WHERE hashtextextended(session, 0) = hashtextextended($1 COLLATE "C", 0) AND (created_at, key) < ($2, $3)
ORDER BY created_at DESC, key DESC LIMIT $4

-- name: list_of_status_and_session
SELECT header, snapshot, owner, fence, created_at, key FROM holdfast.runs
WHERE status = $1 AND hashtextextended(session, 0) = hashtextextended($2 COLLATE "C", 0)
    AND (created_at, key) < ($3, $4) ORDER BY created_at DESC, key DESC LIMIT $5

-- name: list_of_tool
SELECT r.header, r.snapshot, r.owner, r.fence, t.created_at, t.run
FROM holdfast.tools_of_runs t JOIN holdfast.runs r ON r.key = t.run
WHERE t.tool = sha256(convert_to($1, 'UTF8')) AND (t.created_at, t.run) < ($2, $3)
ORDER BY t.created_at DESC, t.run DESC LIMIT $4

-- name: add_tool_of_run
INSERT INTO holdfast.tools_of_runs (tool, created_at, run) VALUES (sha256(convert_to($1, 'UTF8')), $2, $3)
ON CONFLICT DO NOTHING

-- name: last_change
-- All transactions below the first number have ended by now; those that are still going on have it or a higher one.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, (SELECT coalesce(max(key), 0) FROM holdfast.runs)

-- name: changed
-- The runs that have new events, or are new; some of them may have been seen before. A number that this server has not
-- reached yet is from another server, from which the tables were moved here.
SELECT header, snapshot, owner, fence FROM holdfast.runs
WHERE key IN (
    SELECT key FROM holdfast.runs
    WHERE status IN ('created', 'planning', 'executing', 'verifying')
        AND changed >= $1 AND changed < pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    UNION SELECT key FROM holdfast.runs
    WHERE ended >= $1 AND ended < pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    UNION SELECT key FROM holdfast.runs WHERE key > $2
)
ORDER BY created_at DESC, key DESC LIMIT $3

-- name: set_pruned_at
INSERT INTO holdfast.meta (name, value) VALUES ('pruned_at', $1::bigint::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- Export and import, see portable.py and staging.py.

-- name: owning
SELECT id, host, pid, until, locked, awake_until FROM holdfast.owners o
WHERE EXISTS (SELECT FROM holdfast.runs r WHERE r.owner = o.id)

-- name: hold_still
-- The one write during which no other process may write: everything is about to be replaced.
LOCK TABLE holdfast.runs IN SHARE ROW EXCLUSIVE MODE

-- name: put_run
-- Added after its events, from which its weight is computed.
INSERT INTO holdfast.runs (
    key, id, session, status, created_at, touched_at, header, snapshot, first, base, fence, cancel, origin, version,
    ended, weight
) VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 0,
    CASE WHEN $4 IN ('completed', 'failed', 'cancelled') THEN pg_current_xact_id()::text::bigint END,
    (SELECT coalesce(sum(octet_length(payload) + 64), 0)::bigint FROM holdfast.events WHERE run = $1)
)

-- Retention, see retention.py.

-- name: surplus
SELECT id FROM holdfast.runs WHERE status IN ('completed', 'failed', 'cancelled') ORDER BY created_at, key
LIMIT least($1::bigint, greatest(0, (
    SELECT count(*) FROM holdfast.runs WHERE status IN ('completed', 'failed', 'cancelled')
) - $2::bigint))

-- name: too_heavy
-- The first event to keep, if the payloads of all have more bytes than the number given.
SELECT keep FROM (
    SELECT max(sequence) + 1 AS keep FROM (
        SELECT sequence, sum(octet_length(payload)) OVER (ORDER BY sequence DESC) AS weight
        FROM holdfast.events WHERE run = $1
    ) AS weighed WHERE weight > $2::bigint
) AS found WHERE keep IS NOT NULL

-- name: beyond
-- The oldest finished runs that must go so that all runs together have no more bytes than the number given. PostgreSQL
-- reuses the space of deleted rows, and its files do not tell how much of them is in use: so bytes in rows are counted.
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
-- Never: all runs that `beyond` found must go.
SELECT $1::bigint < 0

-- name: prunable
SELECT key, status, touched_at, header, first, base, owner, fence,
    coalesce((SELECT max(sequence) + 1 FROM holdfast.events e WHERE e.run = r.key), first)
FROM holdfast.runs r WHERE id = $1 FOR UPDATE

-- name: set_base
UPDATE holdfast.runs SET first = $1, base = $2, version = version + 1, weight = (
    SELECT coalesce(sum(octet_length(payload) + 64), 0)::bigint FROM holdfast.events WHERE run = $3
) WHERE key = $3

-- The queue, see queue.py.

-- name: hold_queue
SELECT pg_advisory_xact_lock(hashtextextended('holdfast.queue', 0))
