-- Begins a transaction with the next statement, and lets the server end a session that falls silent. Without autocommit,
-- nothing is committed that a step does after the server has rolled back its transaction.
SET autocommit = 0, @idempotency_wait = @@wait_timeout, wait_timeout = {idle}
