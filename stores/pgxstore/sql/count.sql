/* idempotency: count */
-- Counts a replay.
--   $1 operation, $2 token of the replayed record
UPDATE {records} SET replays = replays + 1 WHERE operation = $1::uuid{in_reach} AND token = $2::uuid
