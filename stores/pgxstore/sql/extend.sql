/* idempotency: extend */
-- Renews the lease of a claim.
--   $1 operation, $2 token, $3 lease in microseconds
UPDATE {records} r SET
    lease_until = {after $3},
    expires_at = greatest(r.expires_at, {after $3}),
    expires_minute = date_bin('1 minute', greatest(r.expires_at, {after $3}), 'epoch')
WHERE {held}
