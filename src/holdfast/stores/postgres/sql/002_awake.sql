-- The lease of an owner by a clock that nobody can set: `owners.awake_until` is the monotonic clock of the owner's host, in
-- milliseconds, as in sql/004_awake.sql for embedded stores. Other processes of that host go by it while the owner holds
-- its lock.

ALTER TABLE holdfast.owners ADD COLUMN awake_until BIGINT NOT NULL DEFAULT 0;
