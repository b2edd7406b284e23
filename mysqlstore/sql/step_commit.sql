-- Commits, and leaves the session as it was. Autocommit may be on, because a step may have switched it: only the change to 1
-- commits.
SET autocommit = 0, autocommit = 1, wait_timeout = @idempotency_wait
