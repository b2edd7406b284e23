/* idempotency: confirm */
-- Locks the record of a claim. That changes nothing, but it is written to the log behind the commit of the record; so
-- the commit of this statement waits until the standbys have both. The lock is the weakest one, which keeps neither
-- others that confirm nor updates waiting, save those that move the record to another day.
--
-- A server that has taken over may have the claim, but not yet the response that was seen on the one before.
--
--   $1 digest, $2 token of the record, $3 whether it has a response
SELECT FROM "idempotency_records" WHERE digest = $1::bytea AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours' AND token = $2::uuid AND (status IS NOT NULL) = $3::boolean FOR KEY SHARE
