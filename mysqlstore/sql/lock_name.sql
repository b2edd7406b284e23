-- The name of the lock of a key. Names of locks are the server's, so it is made of database and table, too. They have at
-- most 64 characters.
CONCAT('idempotency:', LEFT(SHA2(CONCAT_WS('.', DATABASE(), {table}, HEX({digest})), 256), 52))
