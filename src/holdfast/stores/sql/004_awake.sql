-- The lease of an owner by a clock that nobody can set. A tour:
--
--   owners.awake_until  like `until`, in milliseconds of the monotonic clock of the owner's host, which stands still while
--                       the machine sleeps. Other processes of that host go by it while the owner holds its lock: after
--                       a jump of the wall clock they would take all living owners for dead.
--
-- Who writes: each process its own row.

ALTER TABLE owners ADD COLUMN awake_until INTEGER NOT NULL DEFAULT 0;
