/* idempotency: replace */
-- Makes room for the record of another attempt, or of another operation after the first one has expired; but not if the
-- owner of a lapsed lease has completed it while this transaction was running, nor if its lease was renewed.
--   $1 digest, $2 token of the record as it was seen
DELETE FROM "idempotency_records" WHERE digest = $1::bytea AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours' AND token = $2::uuid
    AND (expires_at <= statement_timestamp() OR status IS NULL AND (lease_until IS NULL OR lease_until <= statement_timestamp()))
