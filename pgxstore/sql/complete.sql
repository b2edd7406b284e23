/* idempotency: complete */
--   $1 digest, $2 token, $3 status, $4 header, $5 trailer, $6 body, $7 time to live in microseconds
UPDATE {records} r SET
    status = $3::integer, header = $4::json, trailer = $5::json, body = $6::bytea,
    completed_at = {now}, lease_until = NULL, expires_at = {now} + $7::bigint * interval '1 microsecond'
WHERE {held}
