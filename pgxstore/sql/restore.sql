/* idempotency: restore */
-- Makes a record again that is gone, unless another one is there by now. The parameters are those of claim.sql, then
-- $10 operation, $11 attempt, $12 created.
SELECT {columns} FROM {records} r WHERE r.digest = $1::bytea AND NOT {claimable}
UNION ALL
SELECT * FROM {claim_function}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
LIMIT 1
