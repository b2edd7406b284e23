/* idempotency: record */
-- Inserts the record of an operation whose effects are in the same transaction. It must fail rather than do nothing:
-- what follows it is the commit. So it does if another session has recorded the key, by the primary key; and if this
-- is not the transaction any more that began at $10, because the handler has ended that one, by the time of creation,
-- which is null then.
--
--   $1 digest, $2 user, $3 endpoint, $4 key, $5 operation, $6 attempt, $7 fingerprint, $8 token, $9 created,
--   $10 start of the transaction, $11 time to live in microseconds, $12 status, $13 header, $14 trailer, $15 body
INSERT INTO {records} (digest, user_id, endpoint, key, operation, attempt, fingerprint, token, created_at,
    status, header, trailer, body, completed_at, expires_at, expires_minute)
VALUES ($1::bytea, $2::text, $3::text, $4::text, $5::uuid, $6::integer, $7::bytea, $8::uuid,
    CASE now() WHEN $10::timestamptz THEN $9::timestamptz END,
    $12::integer, $13::text, $14::text, $15::bytea, {now}, {after $11},
    date_bin('1 minute', {after $11}, 'epoch'))
