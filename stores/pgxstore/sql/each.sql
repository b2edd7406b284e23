/* idempotency: each */
-- Returns all records that an operator asks for, in no order, and without their answers. The last column tells whether
-- the record can be read; records that cannot be read are returned in any state.
--   $1 to $9 as in totals.sql
SELECT r.operation, r.user_id, r.endpoint, r.key, r.attempt, r.created_at, r.lease_until, r.expires_at,
    {now} AS now, r.completed_at, r.status, {size} AS size, {state} AS state, r.note, {readable}
FROM {records} r WHERE {asked_for} AND (cardinality($1::text[]) = 0 OR {state} = ANY ($1::text[]) OR NOT {readable})
