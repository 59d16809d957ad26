-- The queue: it has no table of its own, but consists of the runs that were submitted. A tour:
--
--   runs.target    the function to call, `module:function`, of a run that was submitted; NULL for any other run, which
--                  no worker ever takes. It is also in the header; here it can be searched for.
--   runs.priority  a higher one is taken first, of equal ones the oldest.
--
-- A run is *queued* as long as it is `created` and never had an owner (`fence` is 0), *begun* from its first owner to
-- its end. Who writes: the process that submits, once. A worker takes a run by becoming its owner, in the transaction
-- that finds it.

ALTER TABLE runs ADD COLUMN target TEXT;
ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_queued ON runs (target, priority DESC, created_at, key, session)
    WHERE target IS NOT NULL AND status = 'created' AND fence = 0;
CREATE INDEX runs_begun ON runs (target, owner, key)
    WHERE target IS NOT NULL AND fence > 0 AND status IN ('created', 'planning', 'executing', 'verifying');
