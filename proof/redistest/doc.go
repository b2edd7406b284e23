// Package redistest has tests that bring a [idempotency.RedisStore] into trouble: lost and late messages, servers that hang,
// crash, fill up or fail over, pools without a free connection, replicas that lag. They know the library by what it exports.
package redistest
