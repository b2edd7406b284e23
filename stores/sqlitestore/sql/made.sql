-- The text of the table of the records, if it is there, and how many there are of it and its index.
SELECT coalesce(max(sql) FILTER (WHERE type = 'table'), ''), count(*)
FROM main.sqlite_schema WHERE name IN ('idempotency_records', 'idempotency_records_expires')
