-- Locks records that were found to have expired, unless they were replaced since. It waits for no other transaction: a
-- handler may have replaced a record, and run for an hour. (TiDB would not lock, but there are no such handlers.) It locks by the primary key alone.
--
--   digests
SELECT digest, expires FROM {records} FORCE INDEX (PRIMARY) WHERE digest IN ({digests}) AND expires <= {now} LIMIT {batch}
FOR UPDATE {skip_locked}
