/* idempotency: place step */
-- Returns where the record of a claim is, for a serializable transaction. If that read the index, it would conflict with all that
-- insert into the same page of it.
--   $1 digest, $2 token
SELECT r.ctid::text FROM "idempotency_records" r WHERE r.digest = $1::bytea AND r.token = $2::uuid AND r.status IS NULL AND r.lease_until IS NOT NULL
    AND r.expires_at > statement_timestamp()
