/* idempotency: users */
-- Returns the users with the largest total size of records.
--   $1 limit
SELECT r.user_id, count(*), sum({size})::bigint FROM {records} r WHERE r.expires_at > {now} AND NOT {is_free}
GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT $1::bigint
