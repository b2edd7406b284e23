/* idempotency: place step */
-- Returns the place of the record of a claim, for a serializable transaction. If the transaction searched the index,
-- it would conflict with all transactions that insert into the same page of the index.
--   $1 operation, $2 token
SELECT r.ctid::text FROM "idempotency_records" r WHERE r.operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours' AND r.token = $2::uuid AND r.status IS NULL AND r.lease_until IS NOT NULL
    AND r.expires_at > statement_timestamp()
