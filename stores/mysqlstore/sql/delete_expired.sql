-- Deletes records that "lock_expired" has locked. It finds them by the primary key, as every statement that changes
-- records does: so it deadlocks with none of its kind.
--
--   operations
DELETE r FROM {records} AS r FORCE INDEX (PRIMARY) WHERE r.operation IN ({operations}) AND r.expires <= {now}
