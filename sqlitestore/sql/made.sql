-- How many there are of the table of the records and its index.
SELECT count(*) FROM sqlite_schema WHERE name IN ('idempotency_records', 'idempotency_records_expires')
