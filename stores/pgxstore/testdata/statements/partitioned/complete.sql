/* idempotency: complete */
-- Completes the record of a claim with a response.
--   $1 operation, $2 token, $3 time to live in microseconds, $4 status, $5 header, $6 trailer, $7 body, $8 note
--   $9 names of the steps that the record must have, separated by line feeds, or null
UPDATE "idempotency_records" r SET
    status = $4::integer, header = $5::text, trailer = $6::text, body = $7::bytea, note = $8::text,
    completed_at = statement_timestamp(), lease_until = NULL,
    expires_at = (statement_timestamp() + $3::bigint * interval '1 microsecond'), expires_minute = date_bin('1 minute', (statement_timestamp() + $3::bigint * interval '1 microsecond'), 'epoch'),
    step_names = NULL, step_results = NULL
WHERE r.operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours' AND r.token = $2::uuid AND r.status IS NULL AND r.lease_until IS NOT NULL
    AND r.expires_at > statement_timestamp() AND ($9::text IS NULL OR r.step_names @> string_to_array($9::text, chr(10)))
