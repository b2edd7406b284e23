/* idempotency: record */
-- Inserts the record of an operation whose effects are in the same transaction. It must fail rather than do nothing:
-- what follows it is the commit. So it does if another session has recorded the key, by the primary key; and if this
-- is not the transaction any more that began at $6, because the handler has ended that one, by the time of creation,
-- which is null then.
--
--   $1 digest, $2 user, $3 endpoint, $4 key, $5 token, $6 start of the transaction, $7 fingerprint,
--   $8 time to live in microseconds, $9 status, $10 header, $11 trailer, $12 body, $13 note
--   and for the next attempt at an operation: $14 its number, $15 creation of the record
INSERT INTO {records} (digest, user_id, endpoint, key, token, attempt, created_at, fingerprint,
    status, header, trailer, body, note, completed_at, expires_at, expires_minute)
VALUES ($1::bytea, $2::text, $3::text, $4::text, $5::uuid,
    {attempt}, CASE now() WHEN $6::timestamptz THEN {created} END, $7::bytea,
    $9::integer, $10::text, $11::text, $12::bytea, $13::text, {now}, {after $8}, date_bin('1 minute', {after $8}, 'epoch'))
