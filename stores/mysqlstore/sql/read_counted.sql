-- The same as "read", for a claim. The second column tells whether the claim would add a record to too many records of the user.
-- The time of the count is when the statement began, because an index is of use for that alone. In a comparison of text, spaces at
-- the end do not count.
--
--   user, the same, how many records of a user are too many, the same, operation
SELECT @@autocommit, (operation IS NULL OR expires <= {now}) AND (
        SELECT COUNT(*) FROM (
            SELECT 1 FROM {records} FORCE INDEX (users)
            WHERE user_id = CONVERT({bytes} USING utf8mb4) COLLATE utf8mb4_bin AND CAST(user_id AS BINARY) = {bytes}
                AND expires > TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)) LIMIT ?
        ) counted
    ) >= ?,
    {now}, @@max_allowed_packet, operation IS NOT NULL,
    CAST(user_id AS BINARY), CAST(endpoint AS BINARY), CAST(`key` AS BINARY), attempt, fingerprint, token, created,
    lease, expires, response
FROM (SELECT 1) one LEFT JOIN {records} ON operation = {bytes} LIMIT 1
