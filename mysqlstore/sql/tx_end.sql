-- Commits, and leaves the session as it was. The server gives back the lock of the key just before it commits; until
-- it has, others meet the row. Autocommit may be on: a procedure of the handler may have switched it, and have begun a
-- transaction. Only the change to 1 commits that, too.
SET autocommit = 0, autocommit = 1, wait_timeout = {wait}, @idempotency_lock = RELEASE_LOCK({lock})
