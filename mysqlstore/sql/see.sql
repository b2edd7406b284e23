-- What people are told of a key: its checkpoints, how it was resolved, whether its lock is free, and the same as by "read".
-- It locks nothing.
SELECT @@autocommit, steps, resolved, IS_FREE_LOCK({lock_name}), {now}, @@max_allowed_packet, digest IS NOT NULL,
    CAST(user_id AS BINARY), CAST(endpoint AS BINARY), CAST(`key` AS BINARY), attempt, fingerprint, token, created,
    lease, expires, response
FROM (SELECT 1) one LEFT JOIN {records} ON digest = {digest} LIMIT 1
