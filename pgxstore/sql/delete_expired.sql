/* idempotency: delete expired */
-- Deletes up to $1 expired records, but none that another session is working on. The minute alone would do, but the
-- record that is locked may be a newer one than that which the index has led to.
DELETE FROM {records} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {records} WHERE expires_minute < date_bin('1 minute', {now}, 'epoch')
    ORDER BY expires_minute LIMIT $1::bigint FOR UPDATE SKIP LOCKED
)) AND expires_at <= {now}
