/* idempotency: delete expired */
-- Deletes the expired records among those at $1, except for records that another session has locked. A place may hold
-- a different record by now, which is deleted only if it has expired, too.
DELETE FROM "idempotency_records" WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM "idempotency_records" WHERE ctid = ANY ($1::tid[]) AND expires_at <= statement_timestamp() FOR UPDATE SKIP LOCKED
)) AND expires_at <= statement_timestamp()
