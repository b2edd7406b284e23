// Package natskv keeps idempotency records in a bucket of NATS JetStream KV: a table for package casstore, to be copied into a
// service. It passes the conformance suites on nats-server 2.15, alone and in a cluster of three.
//
// # What to set
//
//   - The server writes to the disk at once only with "sync_interval: always" in its block jetstream. By default it does so every
//     two minutes, and a loss of power loses the records that it has confirmed since. Their operations then run again.
//   - In a cluster, give the bucket three replicas or more. With one replica, its records are as safe as one disk is.
//   - Connect with [nats.ReconnectBufSize] of -1 and [nats.MaxReconnects] of -1. Otherwise the client keeps requests while the
//     connection is broken, and sends them when the store has long given them up.
//   - The client notices after six minutes that a connection has fallen silent, and every call fails until then. With
//     [nats.PingInterval] of five seconds, it takes 15 seconds.
//   - A value has at most max_payload bytes, 1 MB by default, less some hundred for the record. A larger answer is stored with
//     Omitted set.
//
// # What NATS promises
//
// A write with an expected revision is ordered by the leader of the stream, and is confirmed when a quorum has it. Reads of a KV
// bucket are usually direct gets, which any replica answers, perhaps with an old value. [Open] makes the bucket without them, so
// the leader answers. One gap is left in a cluster: a leader that was cut off, and does not know yet that there is a new one, may
// answer a read with an old value. It cannot confirm a write, so no two attempts get the same claim. But an attempt that reads
// there may be told that it has lost its claim: its answer is not stored then, and its operation runs again after the lease. The
// tests have three servers whose leader steps down. None of them was cut off.
package natskv

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/casstore"
)

// Table implements [casstore.Table].
type Table struct {
	kv     jetstream.KeyValue
	maxTTL time.Duration
}

// Open makes a bucket of that name, or adapts the one that there is. Each value is kept for maxTTL after it was written
// last. So maxTTL is longer than every TTL of idempotency.Options, by twice the Skew of casstore.Options at least.
func Open(ctx context.Context, js jetstream.JetStream, bucket string, replicas int, maxTTL time.Duration) (*Table, error) {
	// This is what js.CreateKeyValue makes, but without AllowDirect.
	_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:              "KV_" + bucket,
		Subjects:          []string{"$KV." + bucket + ".>"},
		MaxMsgsPerSubject: 1,
		MaxAge:            maxTTL,
		Duplicates:        min(maxTTL, 2*time.Minute),
		Discard:           jetstream.DiscardNew,
		Storage:           jetstream.FileStorage,
		Replicas:          replicas,
		DenyDelete:        true,
		AllowRollup:       true,
	})
	if err != nil {
		return nil, fmt.Errorf("natskv: open the bucket %s: %w", bucket, err)
	}
	kv, err := js.KeyValue(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("natskv: open the bucket %s: %w", bucket, err)
	}
	return &Table{kv, maxTTL}, nil
}

// Get implements [casstore.Table].
func (t *Table) Get(ctx context.Context, key string) (casstore.Value, error) {
	entry, err := t.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return casstore.Value{}, casstore.ErrNotFound
	}
	if err != nil {
		return casstore.Value{}, err
	}
	return casstore.Value{Data: entry.Value(), Version: versionOf(entry.Revision())}, nil
}

// Create implements [casstore.Table].
func (t *Table) Create(ctx context.Context, key string, data []byte, ttl time.Duration) (string, error) {
	if err := t.checkTTL(ttl); err != nil {
		return "", err
	}
	revision, err := t.kv.Create(ctx, key, data)
	return versionOf(revision), failure(err)
}

// Replace implements [casstore.Table].
func (t *Table) Replace(ctx context.Context, key, version string, data []byte, ttl time.Duration) (string, error) {
	if err := t.checkTTL(ttl); err != nil {
		return "", err
	}
	revision, err := t.kv.Update(ctx, key, data, revisionOf(version))
	return versionOf(revision), failure(err)
}

// Delete implements [casstore.Table].
func (t *Table) Delete(ctx context.Context, key, version string) error {
	return failure(t.kv.Delete(ctx, key, jetstream.LastRevision(revisionOf(version))))
}

func (t *Table) checkTTL(ttl time.Duration) error {
	if t.maxTTL > 0 && ttl > t.maxTTL {
		return fmt.Errorf("natskv: a value for %s, and the bucket keeps values for %s: %w", ttl, t.maxTTL, errors.ErrUnsupported)
	}
	return nil
}

// A revision is a sequence number of the stream, so it never comes back.
func versionOf(revision uint64) string { return strconv.FormatUint(revision, 10) }

func revisionOf(version string) uint64 {
	revision, _ := strconv.ParseUint(version, 10, 64) // versionOf has written it
	return revision
}

// insufficientResources is the error code of a server whose memory or disk for JetStream is used up.
const insufficientResources = jetstream.ErrorCode(nats.JSErrCodeInsufficientResourcesErr)

// failure returns the error of a write.
func failure(err error) error {
	answer, _ := errors.AsType[*jetstream.APIError](err)
	switch {
	case answer != nil && (answer.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		answer.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant): // with replicas
		return casstore.ErrConflict
	case errors.Is(err, nats.ErrMaxPayload), answer != nil && answer.ErrorCode == insufficientResources:
		return fmt.Errorf("%w: %w", idempotency.ErrStoreFull, err)
	default:
		return err
	}
}
