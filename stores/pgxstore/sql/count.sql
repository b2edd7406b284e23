/* idempotency: count */
-- Counts a replay.
--   $1 digest, $2 token of the replayed record
UPDATE {records} SET replays = replays + 1 WHERE digest = $1::bytea{in_reach} AND token = $2::uuid
