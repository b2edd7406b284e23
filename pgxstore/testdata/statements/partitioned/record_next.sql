/* idempotency: record */
INSERT INTO "idempotency_records" (digest, user_id, endpoint, key, token, attempt, created_at, fingerprint,
    status, header, trailer, body, note, completed_at, expires_at, expires_minute)
VALUES ($1::bytea, $2::text, $3::text, $4::text, $5::uuid,
    $14::integer, CASE now() WHEN $6::timestamptz THEN CASE WHEN NOT EXISTS (SELECT FROM "idempotency_records" WHERE digest = $1::bytea AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours') THEN $15::timestamptz END END, $7::bytea,
    $9::integer, $10::text, $11::text, $12::bytea, $13::text, statement_timestamp(), (statement_timestamp() + $8::bigint * interval '1 microsecond'), date_bin('1 minute', (statement_timestamp() + $8::bigint * interval '1 microsecond'), 'epoch'))
