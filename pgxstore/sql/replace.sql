/* idempotency: replace */
-- Makes room for the record of another attempt, or of another operation after the first one has expired; but not if the
-- owner of a lapsed lease has completed it while this transaction was running, nor if its lease was renewed.
--   $1 digest, $2 token of the record as it was seen
DELETE FROM {records} WHERE digest = $1::bytea{in_reach} AND token = $2::uuid
    AND (expires_at <= {now} OR status IS NULL AND (lease_until IS NULL OR lease_until <= {now}))
