/* idempotency: restore */
-- Restores the record of a claim if the record is gone or has expired, with its lease or with its response. The
-- columns of the result are:
--
--   1  whether the record was restored
--   2  whether the claim may restore the record. If 2 is true and 1 is false, another session was faster. Repeat the
--      statement.
--   3  whether the claim has completed the record before
--
-- A record with a different token belongs to a later attempt, and stays as it is, even if it has expired. A record
-- that the claim has restored before is renewed or completed. If it is renewed, it keeps the steps that were stored
-- since. A record that is restored with a lease gets the step idempotency.RecordLost, because the steps of earlier
-- attempts are lost.
--
--   $1 operation, $2 fingerprint, $3 user, $4 endpoint, $5 key, $6 token, $7 attempt, $8 creation
--   $9 lease, or null with a response; $10 time to live (both in microseconds)
--   $11 status, $12 header, $13 trailer, $14 body, $15 note; null with a lease
WITH record (operation, fingerprint, user_id, endpoint, key, token, attempt, created_at,
        lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results) AS (
    SELECT $1::uuid, $2::bytea, $3::text, $4::text, $5::text, $6::uuid, $7::integer, $8::timestamptz,
        (statement_timestamp() + $9::bigint * interval '1 microsecond'), (statement_timestamp() + $10::bigint * interval '1 microsecond'), date_bin('1 minute', (statement_timestamp() + $10::bigint * interval '1 microsecond'), 'epoch'),
        CASE WHEN $11::integer IS NOT NULL THEN statement_timestamp() END, $11::integer, $12::text, $13::text, $14::bytea, $15::text, 0,
        CASE WHEN $9::bigint IS NOT NULL THEN ARRAY['?lost?'] END,
        CASE WHEN $9::bigint IS NOT NULL THEN ARRAY[''::bytea] END
), again AS (
    UPDATE "idempotency_records" r SET (operation, fingerprint, user_id, endpoint, key, token, attempt, created_at,
        lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays) = (SELECT operation, fingerprint, user_id, endpoint, key, token, attempt, created_at,
        lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays FROM record),
        step_names = CASE WHEN $9::bigint IS NOT NULL AND r.expires_at > statement_timestamp() THEN r.step_names ELSE (SELECT step_names FROM record) END,
        step_results = CASE WHEN $9::bigint IS NOT NULL AND r.expires_at > statement_timestamp() THEN r.step_results ELSE (SELECT step_results FROM record) END,
        resolved = CASE WHEN r.expires_at > statement_timestamp() THEN r.resolved END
    WHERE r.operation = $1::uuid AND (r.token = $6::uuid AND (r.expires_at <= statement_timestamp() OR r.status IS NULL AND r.lease_until IS NOT NULL)) RETURNING true
), made AS (
    INSERT INTO "idempotency_records" (operation, fingerprint, user_id, endpoint, key, token, attempt, created_at,
        lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results) SELECT * FROM record
    WHERE NOT EXISTS (SELECT FROM "idempotency_records" WHERE operation = $1::uuid) ON CONFLICT (operation) DO NOTHING RETURNING true
)
SELECT EXISTS (SELECT FROM again) OR EXISTS (SELECT FROM made), coalesce((r.token = $6::uuid AND (r.expires_at <= statement_timestamp() OR r.status IS NULL AND r.lease_until IS NOT NULL)), true),
    coalesce(r.token = $6::uuid AND r.status IS NOT NULL, false)
FROM (SELECT) AS question LEFT JOIN "idempotency_records" r ON r.operation = $1::uuid
