/* idempotency: extend */
--   $1 digest, $2 token, $3 lease in microseconds
UPDATE {records} r SET
    lease_until = {now} + $3::bigint * interval '1 microsecond',
    expires_at = greatest(r.expires_at, {now} + $3::bigint * interval '1 microsecond')
WHERE {held}
