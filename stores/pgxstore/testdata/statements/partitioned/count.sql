/* idempotency: count */
-- Counts a replay.
--   $1 operation, $2 token of the replayed record
UPDATE "idempotency_records" SET replays = replays + 1 WHERE operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours' AND token = $2::uuid
