/* idempotency: restore */
-- Makes the record of a claim again if it is gone or has expired, with its lease or with its response. Returns whether
-- it has; whether it may, by what was there before (if it may and has not, another session was faster, and the statement
-- is to be run again); and whether the claim has its response already.
--
-- A record is left alone if it is somebody else's, even if it has expired: they have claimed the key since. One that the
-- claim has made again before is renewed or completed. Renewed, it keeps the steps that were stored since. Made again with its
-- lease, it has the step that says that others were lost.
--
--   $1 digest, $2 fingerprint, $3 user, $4 endpoint, $5 key, $6 token, $7 attempt, $8 created
--   $9 lease, null with a response; $10 time to live (both in microseconds)
--   $11 status, $12 header, $13 trailer, $14 body, $15 note; null with a lease
WITH record (digest, fingerprint, user_id, endpoint, key, token, attempt, created_at,
        lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results) AS (
    SELECT $1::bytea, $2::bytea, $3::text, $4::text, $5::text, $6::uuid, $7::integer, $8::timestamptz,
        (statement_timestamp() + $9::bigint * interval '1 microsecond'), (statement_timestamp() + $10::bigint * interval '1 microsecond'), date_bin('1 minute', (statement_timestamp() + $10::bigint * interval '1 microsecond'), 'epoch'),
        CASE WHEN $11::integer IS NOT NULL THEN statement_timestamp() END, $11::integer, $12::text, $13::text, $14::bytea, $15::text, 0,
        CASE WHEN $9::bigint IS NOT NULL THEN ARRAY['?lost?'] END,
        CASE WHEN $9::bigint IS NOT NULL THEN ARRAY[''::bytea] END
), again AS (
    UPDATE "idempotency_records" r SET (digest, fingerprint, user_id, endpoint, key, token, attempt, created_at,
        lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays) = (SELECT digest, fingerprint, user_id, endpoint, key, token, attempt, created_at,
        lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays FROM record),
        step_names = CASE WHEN $9::bigint IS NOT NULL AND r.expires_at > statement_timestamp() THEN r.step_names ELSE (SELECT step_names FROM record) END,
        step_results = CASE WHEN $9::bigint IS NOT NULL AND r.expires_at > statement_timestamp() THEN r.step_results ELSE (SELECT step_results FROM record) END,
        resolved = CASE WHEN r.expires_at > statement_timestamp() THEN r.resolved END
    WHERE r.digest = $1::bytea AND (r.token = $6::uuid AND (r.expires_at <= statement_timestamp() OR r.status IS NULL AND r.lease_until IS NOT NULL)) RETURNING true
), made AS (
    INSERT INTO "idempotency_records" (digest, fingerprint, user_id, endpoint, key, token, attempt, created_at,
        lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results) SELECT * FROM record
    WHERE NOT EXISTS (SELECT FROM "idempotency_records" WHERE digest = $1::bytea) ON CONFLICT (digest) DO NOTHING RETURNING true
)
SELECT EXISTS (SELECT FROM again) OR EXISTS (SELECT FROM made), coalesce((r.token = $6::uuid AND (r.expires_at <= statement_timestamp() OR r.status IS NULL AND r.lease_until IS NOT NULL)), true),
    coalesce(r.token = $6::uuid AND r.status IS NOT NULL, false)
FROM (SELECT) AS question LEFT JOIN "idempotency_records" r ON r.digest = $1::bytea
