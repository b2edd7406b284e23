// Package natskv keeps idempotency records in a bucket of NATS JetStream KV. The package is a table for package casstore: copy
// the package into your service. The table passes the conformance suites on nats-server 2.15, alone and in a cluster of three.
//
// # What to set
//
//   - Set "sync_interval: always" in the block jetstream of the server, because by default the server syncs the disk every two
//     minutes. A loss of power then loses the records since the last sync, although the server has confirmed the records, and
//     their operations run again.
//   - In a cluster, give the bucket three replicas or more. With one replica, the records are as safe as one disk.
//   - Connect with [nats.ReconnectBufSize] of -1 and [nats.MaxReconnects] of -1. Otherwise the client buffers requests while the
//     connection is broken, and sends the requests long after the store has given up.
//   - Set [nats.PingInterval] to five seconds, and the client notices a silent connection after 15 seconds. By default, the client
//     takes six minutes, and every call fails until the client notices.
//   - A value has at most max_payload bytes, 1 MB by default, less a few hundred bytes for the record. A larger answer is stored
//     with Omitted set.
//
// # What NATS promises
//
// The leader of the stream orders the writes with an expected revision, and confirms a write when a quorum has the write. Reads
// of a KV bucket are usually direct gets: any replica answers, perhaps with an old value. [Open] creates the bucket without
// direct gets, so the leader answers every read.
//
// A gap is left in a cluster: a leader that was cut off, and has not heard of the new leader yet, may answer a read with an old
// value. The old leader cannot confirm a write, so two attempts never get the same claim. But an attempt that reads from the
// old leader may learn, wrongly, that its claim is lost. Its answer is not stored, and its operation runs again after the
// lease. The tests run three servers whose leader steps down, but cut off none of the servers.
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

// Open creates the bucket, or adapts the settings of an existing bucket. NATS keeps each value for maxTTL after its last write.
// So maxTTL must exceed every TTL of idempotency.Options by at least twice the Skew of casstore.Options.
func Open(ctx context.Context, js jetstream.JetStream, bucket string, replicas int, maxTTL time.Duration) (*Table, error) {
	// These are the settings of js.CreateKeyValue, without AllowDirect.
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
	return versionOf(revision), convertWriteError(err)
}

// Replace implements [casstore.Table].
func (t *Table) Replace(ctx context.Context, key, version string, data []byte, ttl time.Duration) (string, error) {
	if err := t.checkTTL(ttl); err != nil {
		return "", err
	}
	revision, err := t.kv.Update(ctx, key, data, revisionOf(version))
	return versionOf(revision), convertWriteError(err)
}

// Delete implements [casstore.Table].
func (t *Table) Delete(ctx context.Context, key, version string) error {
	return convertWriteError(t.kv.Delete(ctx, key, jetstream.LastRevision(revisionOf(version))))
}

// checkTTL returns an error if the bucket forgets a value before ttl ends.
func (t *Table) checkTTL(ttl time.Duration) error {
	if t.maxTTL > 0 && ttl > t.maxTTL {
		return fmt.Errorf("natskv: a value for %s, and the bucket keeps values for %s: %w", ttl, t.maxTTL, errors.ErrUnsupported)
	}
	return nil
}

// versionOf returns revision as a version. Versions never repeat, because a revision is a sequence number of the stream.
func versionOf(revision uint64) string { return strconv.FormatUint(revision, 10) }

func revisionOf(version string) uint64 {
	revision, _ := strconv.ParseUint(version, 10, 64) // versionOf has made version
	return revision
}

// insufficientResources is the error code of a server without free memory or disk for JetStream.
const insufficientResources = jetstream.ErrorCode(nats.JSErrCodeInsufficientResourcesErr)

// convertWriteError converts the error of a write to the errors of casstore and idempotency.
func convertWriteError(err error) error {
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
