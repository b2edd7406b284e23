-- Deletes all records.
DROP TABLE IF EXISTS {records}
