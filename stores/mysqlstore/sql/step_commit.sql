-- Commits, and leaves the session as it was. Only a change of autocommit from 0 to 1 commits. It is set to 0 before, because a step
-- may have switched it on.
SET autocommit = 0, autocommit = 1, wait_timeout = @idempotency_wait
