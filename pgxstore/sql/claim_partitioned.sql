/* idempotency: claim */
-- Claims a key of a table with partitions, or returns the record that holds it, in which case nothing is written. The
-- parameters are those of claim.sql and, to make a record again that is gone, those of restore.sql.
--
-- It runs under the lock of the key, by which no other session inserts a record for it. Where the record is does not
-- matter: all partitions are searched, and a new time of expiry moves it to its partition.
WITH seen AS MATERIALIZED (
    SELECT {columns}, {claimable} AS claimable FROM {records} r WHERE r.digest = $1::bytea
), retaken AS (
    UPDATE {records} r SET {claim_again}
    WHERE r.digest = $1::bytea AND {claimable} AND EXISTS (SELECT FROM seen WHERE seen.claimable)
    RETURNING {columns}
), made AS (
    INSERT INTO {records} AS r ({claim_columns})
    SELECT {claim}
    WHERE NOT EXISTS (SELECT FROM seen)
    RETURNING {columns}
)
SELECT operation, attempt, fingerprint, token, created_at, lease_until, now, status, header, trailer, body
FROM seen WHERE NOT claimable
UNION ALL SELECT * FROM retaken
UNION ALL SELECT * FROM made
