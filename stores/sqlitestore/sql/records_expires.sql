-- For trim.sql.
CREATE INDEX IF NOT EXISTS idempotency_records_expires ON idempotency_records (expires)
