-- Locks records that were found to have expired, unless they were replaced since. It waits for no other transaction, such as
-- that of a step. (TiDB would wait, but has no such steps.) It locks by the primary key alone.
--
--   operations
SELECT operation, expires FROM {records} FORCE INDEX (PRIMARY) WHERE operation IN ({operations}) AND expires <= {now} LIMIT {batch}
FOR UPDATE {skip_locked}
