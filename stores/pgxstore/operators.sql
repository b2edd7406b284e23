-- Statements to copy, for operators of a service with pgxstore. They use the default name of the table. User, endpoint and key are
-- in ASCII: other bytes and the backslash are written as \xHH ('Ren\xc3\xa9'). With Options.DigestNames, the three columns have
-- digests: look for user_id = encode(sha256(convert_to('42', 'UTF8')), 'hex'). The column token is the secret of a claim.

-- What the role of a service needs beside USAGE on the schema, if another role calls Migrate. DELETE is for the janitor. On a
-- table with partitions, the janitor's role must own the table and its partitions, and the function is idempotency_records_claim_day.
-- With Options.MaxUserRecords, the function idempotency_records_claim_max is needed as well.
GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_records TO shop;
GRANT EXECUTE ON FUNCTION idempotency_records_claim TO shop;

-- The log of the server then has no parameters of this role: names, answers, results of steps. A superuser must say it. It is in
-- vain with pgx.QueryExecModeSimpleProtocol, and for extensions such as auto_explain and pgaudit, which have settings of their own.
ALTER ROLE shop SET log_parameter_max_length = 0;

-- The operations of user 42 on 21 November, with their attempts and outcomes. If you ask this often, make an index:
-- CREATE INDEX CONCURRENTLY ON idempotency_records (user_id, created_at), without CONCURRENTLY on a table with partitions.
SELECT created_at, endpoint, key, attempt,
       CASE WHEN status IS NOT NULL             THEN 'answered ' || status
            WHEN lease_until IS NULL            THEN 'failed, may be tried again'
            WHEN lease_until > clock_timestamp() THEN 'running'
            ELSE 'interrupted, outcome unknown' END AS outcome,
       completed_at - created_at AS took
FROM idempotency_records
WHERE user_id = '42' AND created_at >= '2026-11-21' AND created_at < '2026-11-22'
ORDER BY created_at;

-- Operations that were interrupted, and that no later request has taken over.
SELECT user_id, endpoint, key, attempt, lease_until
FROM idempotency_records
WHERE status IS NULL AND lease_until < clock_timestamp() AND expires_at > clock_timestamp();

-- The operation with the ID in a log line, and its answer.
SELECT user_id, endpoint, key, status, header, substring(header FROM '(?n)^Location: (.*)$') AS location, convert_from(body, 'UTF8')
FROM idempotency_records WHERE operation = '7d4c8a1e-3b52-8f60-9a41-5e2d7c9b0f13';

-- A job of pg_cron that deletes expired records without the service, from a table without partitions.
SELECT cron.schedule('idempotency', '* * * * *', $$
DELETE FROM idempotency_records WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM idempotency_records WHERE expires_minute < date_bin('1 minute', now(), 'epoch')
    ORDER BY expires_minute LIMIT 50000 FOR UPDATE SKIP LOCKED
)) AND expires_at <= now() $$);
