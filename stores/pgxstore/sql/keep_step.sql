/* idempotency: keep step */
-- Stores the result of a step in the transaction of its rows, and renews the lease. A commit follows, so the
-- statement must fail if it stores nothing:
--
--   division by zero                  the claim has lost the record, or the step has a result already
--   square root of a negative number  the step began in a different transaction
--
--   $1 operation, $2 token, $3 name, $4 result, $5 lease in microseconds, $6 ID of the transaction
--   $7 for a serializable transaction: the place of the record, see place_step.sql
WITH kept AS (
    UPDATE {records} r SET
        step_names = array_append(r.step_names, $3::text), step_results = array_append(r.step_results, $4::bytea),
        lease_until = {after $5},
        expires_at = greatest(r.expires_at, {after $5}),
        expires_minute = date_bin('1 minute', greatest(r.expires_at, {after $5}), 'epoch')
    WHERE {held}{at $7} AND ($3::text = ANY (r.step_names)) IS NOT TRUE
    RETURNING true
)
SELECT CASE WHEN pg_current_xact_id() = $6::text::xid8 THEN 1 / count(*) ELSE sqrt(-1 - count(*)) END FROM kept
