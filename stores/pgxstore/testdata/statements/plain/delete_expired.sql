/* idempotency: delete expired */
-- Deletes the expired records among those at $1, but none that another session is working on. What is there may be
-- another record by now, which is as good if it has expired, too.
DELETE FROM "idempotency_records" WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM "idempotency_records" WHERE ctid = ANY ($1::tid[]) AND expires_at <= statement_timestamp() FOR UPDATE SKIP LOCKED
)) AND expires_at <= statement_timestamp()
