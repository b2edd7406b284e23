/* idempotency: restore */
-- Makes a record again that is gone. The parameters are those of claim.sql, then $10 operation, $11 attempt, $12 created.
SELECT * FROM {claim_function}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
