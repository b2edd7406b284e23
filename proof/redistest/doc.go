// Package redistest tests a [idempotency.RedisStore] under faults: lost and late messages, hanging servers, crashes, full
// servers, failovers, pools without a free connection, and lagging replicas. The tests use only the exported API of the
// library.
package redistest
