/* idempotency: record */
INSERT INTO "idempotency_records" (digest, user_id, endpoint, key, token, operation, attempt, created_at, fingerprint,
    status, header, trailer, body, completed_at, expires_at, expires_minute)
VALUES ($1::bytea, $2::text, $3::text, $4::text, $5::uuid, $6::uuid,
    $14::integer, CASE now() WHEN $7::timestamptz THEN CASE WHEN NOT EXISTS (SELECT FROM "idempotency_records" WHERE digest = $1::bytea AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours') THEN $15::timestamptz END END, $8::bytea,
    $10::integer, $11::text, $12::text, $13::bytea, statement_timestamp(), (statement_timestamp() + $9::bigint * interval '1 microsecond'), date_bin('1 minute', (statement_timestamp() + $9::bigint * interval '1 microsecond'), 'epoch'))
