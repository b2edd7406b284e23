/* idempotency: count */
--   $1 digest, $2 token of the record that was replayed
UPDATE {records} SET replays = replays + 1 WHERE digest = $1::bytea{in_reach} AND token = $2::uuid
