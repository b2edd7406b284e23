/* idempotency: record */
-- Inserts the record of an operation whose effects are in the same transaction. It must fail rather than do nothing:
-- what follows it is the commit. So it does if another session has recorded the key, by the primary key; and if this
-- is not the transaction any more that began at $15, because the handler has ended that one, by the time of creation,
-- which is null then.
--
--   $1 digest, $2 user, $3 endpoint, $4 key, $5 operation, $6 attempt, $7 fingerprint, $8 token, $9 created,
--   $10 status, $11 header, $12 trailer, $13 body, $14 time to live in microseconds, $15 start of the transaction
INSERT INTO {records} (digest, user_id, endpoint, key, operation, attempt, fingerprint, token, created_at,
    status, header, trailer, body, completed_at, expires_at)
VALUES ($1::bytea, $2::text, $3::text, $4::text, $5::uuid, $6::integer, $7::bytea, $8::uuid,
    CASE now() WHEN $15::timestamptz THEN $9::timestamptz END,
    $10::integer, $11::json, $12::json, $13::bytea, {now}, {now} + $14::bigint * interval '1 microsecond')
