/* idempotency: confirm */
-- Locks the record of a claim. The lock changes no data, but is written to the log after the commit of the record.
-- The commit of this statement therefore waits until the standbys have both. The lock is the weakest lock: other
-- confirmations and updates do not wait for it, except for updates that move the record to another partition.
--
-- After a failover, the new primary may have the claim without the response that was read on the former primary.
--
--   $1 operation, $2 token of the record, $3 whether the record has a response
SELECT FROM {records} WHERE operation = $1::uuid{in_reach} AND token = $2::uuid AND (status IS NOT NULL) = $3::boolean FOR KEY SHARE
