-- For user_full.sql, and only with Options.MaxUserRecords.
CREATE INDEX IF NOT EXISTS idempotency_records_user ON idempotency_records (user_id, expires)
