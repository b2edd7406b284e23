/* idempotency: record */
-- Inserts the record of an operation whose effects are in the same transaction. It must fail rather than do nothing:
-- what follows it is the commit. So it does if another session has recorded the key, by the primary key; and if this
-- is not the transaction any more that began at $7, because the handler has ended that one, by the time of creation,
-- which is null then.
--
--   $1 digest, $2 user, $3 endpoint, $4 key, $5 token, $6 operation, $7 start of the transaction, $8 fingerprint,
--   $9 time to live in microseconds, $10 status, $11 header, $12 trailer, $13 body
--   and for the next attempt at an operation: $14 its number, $15 creation of the operation
INSERT INTO {records} (digest, user_id, endpoint, key, token, operation, attempt, created_at, fingerprint,
    status, header, trailer, body, completed_at, expires_at, expires_minute)
VALUES ($1::bytea, $2::text, $3::text, $4::text, $5::uuid, $6::uuid,
    {attempt}, CASE now() WHEN $7::timestamptz THEN {created} END, $8::bytea,
    $10::integer, $11::text, $12::text, $13::bytea, {now}, {after $9}, date_bin('1 minute', {after $9}, 'epoch'))
