/* idempotency: find expired */
-- Returns the places of up to $1 expired records, after the first $2.
SELECT ctid FROM "idempotency_records" WHERE expires_minute < date_bin('1 minute', statement_timestamp(), 'epoch')
ORDER BY expires_minute LIMIT $1::bigint OFFSET $2::bigint
