-- Whether statements are committed, the time, what the server takes at most in one statement, and the record of a key, whether or not it has expired. It
-- returns one row, also if there is no record.
--
--   operation
SELECT @@autocommit, {now}, @@max_allowed_packet, operation IS NOT NULL,
    CAST(user_id AS BINARY), CAST(endpoint AS BINARY), CAST(`key` AS BINARY), attempt, fingerprint, token, created,
    lease, expires, response
FROM (SELECT 1) one LEFT JOIN {records} ON operation = {bytes} LIMIT 1
