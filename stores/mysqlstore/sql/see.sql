-- What people are told of a key: its checkpoints, how it was resolved, and the same as by "read".
-- It locks nothing.
SELECT @@autocommit, steps, resolved, ended, {now}, @@max_allowed_packet, operation IS NOT NULL,
    CAST(user_id AS BINARY), CAST(endpoint AS BINARY), CAST(`key` AS BINARY), attempt, fingerprint, token, created,
    lease, expires, response
FROM (SELECT 1) one LEFT JOIN {records} ON operation = {operation} LIMIT 1
