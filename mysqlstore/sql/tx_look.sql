-- The session, whether the key is locked, the time, what the server takes at most in one statement, and the record of
-- the key, whether or not it has expired. It returns one row, also if there is no record. The names of the record are
-- read as they are stored, whatever the character set of the session is. The isolation level has one name in MariaDB,
-- and another one in MySQL.
SELECT @@autocommit, /*M!100000 @@tx_isolation *//*!50720 @@transaction_isolation */ = 'READ-UNCOMMITTED',
    @@wait_timeout, name, IS_FREE_LOCK(name), {now}, @@max_allowed_packet, digest IS NOT NULL,
    CAST(user_id AS BINARY), CAST(endpoint AS BINARY), CAST(`key` AS BINARY), attempt, fingerprint, token, created,
    lease, expires, response
FROM (
    SELECT {lock_name} AS name
) one LEFT JOIN {records} ON digest = {digest}
