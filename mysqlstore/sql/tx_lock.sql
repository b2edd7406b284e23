-- Locks the key, and begins the transaction with the next statement. Without autocommit, nothing is committed that a
-- handler does after the database has rolled back behind its back. A session that falls silent is ended.
SET autocommit = 0, wait_timeout = {idle}, @idempotency_lock = GET_LOCK({lock}, 0)
