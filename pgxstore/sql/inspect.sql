/* idempotency: inspect */
-- Returns the record of a key for people to look at, and whether a session has the advisory lock of the key. A key without
-- a record is told, too: only the lock shows that a transaction is running the operation. The lock is looked up, not taken,
-- because a request that comes meanwhile would find it taken.
--
--   $1 digest, $2 number of the key
SELECT {columns}, r.completed_at, coalesce({size}, 0), {state}, {locked $2},
    ARRAY(SELECT coalesce(name, '') FROM {steps} ORDER BY name COLLATE "C"),
    ARRAY(SELECT coalesce(octet_length(result), 0) FROM {steps} ORDER BY name COLLATE "C"), r.resolved
FROM (SELECT) AS question LEFT JOIN {records} r ON r.digest = $1::bytea{in_reach}{newest}
