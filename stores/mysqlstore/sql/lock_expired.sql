-- Locks records that were found to have expired, unless they were replaced since. It waits for no other transaction, such as
-- that of a step. (TiDB would wait, but has no such steps.) It locks by the primary key alone.
--
--   digests
SELECT digest, expires FROM {records} FORCE INDEX (PRIMARY) WHERE digest IN ({digests}) AND expires <= {now} LIMIT {batch}
FOR UPDATE {skip_locked}
