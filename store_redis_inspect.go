package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

var _ Inspector = (*RedisStore)(nil)

// Inspect implements [Inspector]. Redis does not know when an operation was completed, so Entry.Completed is zero. If
// somebody has taken away the expiry of a record, Redis does not know its age either. The lease then counts from now,
// as for Begin, and Entry.Remaining is zero.
func (s *RedisStore) Inspect(ctx context.Context, key Key) (Entry, error) {
	return s.InspectDigest(ctx, key.Digest())
}

// InspectDigest is Inspect for a key of which only the digest is known, as in a [Listing].
func (s *RedisStore) InspectDigest(ctx context.Context, digest [sha256.Size]byte) (Entry, error) {
	if s.fault != nil {
		return Entry{}, s.fault
	}
	name := s.name(digest)
	held, err := s.look(ctx, name)
	if errors.Is(err, redis.Nil) || err == nil && held.expiry == redisMissing {
		return Entry{}, ErrNoRecord
	}
	entry := Entry{Digest: digest}
	if err != nil {
		return entry, err
	}
	entry.Size, entry.Remaining = held.size, max(0, held.expiry)
	found, err := parseRecord(held.start, s.half(name))
	if err == nil {
		err = found.show(&entry, held)
	}
	if err != nil || found.state != stateDone {
		return entry, err
	}
	record, err := found.decode()
	if err != nil {
		return entry, err
	}
	entry.Response, entry.Note = record.Response.CutNote()
	entry.Status = entry.Response.Status
	return entry, nil
}

// What PTTL says of a record that has no expiry, and of none.
const (
	redisEternal = -1
	redisMissing = -2
)

// seenRecord is what one moment has shown of a record.
type seenRecord struct {
	start  []byte // of the value, or all of it
	size   int64  // of the whole value
	expiry time.Duration
}

// look reads the record of that name at one moment: a transaction does it, because a script would copy a large answer.
func (s *RedisStore) look(ctx context.Context, name string) (held seenRecord, err error) {
	_, err = s.again(ctx, func() error {
		pipe := s.client.TxPipeline()
		value, expiry := pipe.Get(ctx, name), pipe.PTTL(ctx, name)
		if err := s.exec(ctx, name, pipe); err != nil {
			return err
		}
		start, err := value.Bytes()
		held = seenRecord{start, int64(len(start)), expiry.Val()}
		return err
	})
	return held, storeError(err)
}

// show adds what the head of a record says to an entry, if the record as a whole has the form that its head asks for.
func (r redisRecord) show(entry *Entry, held seenRecord) error {
	open := r.state == stateRunning || r.state == stateReleased
	switch {
	case open && held.size > int64(len(r.head)), open && !isHex(r.token): // which no script takes for a record
		return errRedisHead
	case !open && r.state != stateDone:
		return errRedisHead
	}
	entry.State = r.stateNow(held)
	entry.Attempt, entry.Created = r.record.Attempt, r.record.Created
	entry.Fingerprint = r.record.Fingerprint
	if entry.State == StateRunning {
		entry.LeaseLeft = r.leaseLeft(held)
	}
	return nil
}

// isHex reports whether a token is one that the scripts know.
func isHex(token []byte) bool {
	var raw [redisTokenSize / 2]byte
	_, err := hex.Decode(raw[:], token)
	return err == nil
}

func (r redisRecord) stateNow(held seenRecord) State {
	switch {
	case r.state == stateDone:
		return StateCompleted
	case r.state == stateReleased:
		return StateReleased
	case r.leaseLeft(held) > 0:
		return StateRunning
	default:
		return StateAbandoned
	}
}

// leaseLeft returns the rest of a lease: what is gone of the expiry is gone of the lease, see lua/record.lua.
func (r redisRecord) leaseLeft(held seenRecord) time.Duration {
	gone := r.given - held.expiry.Milliseconds()
	if held.expiry == redisEternal {
		gone = 0
	}
	return fromMilliseconds(max(0, r.lease-gone))
}

// Forget implements [Inspector]. One script compares and removes the record, by the clock of Redis. A forgotten answer
// comes back if a replica that does not yet know of the removal becomes the master.
//
// A record without an expiry is forgotten only if it is completed or released.
func (s *RedisStore) Forget(ctx context.Context, asked Entry) error {
	if s.fault != nil {
		return s.fault
	}
	if asked.State == "" {
		return fmt.Errorf("%w: an entry without a state", ErrRecordInvalid) // of what could not be read
	}
	name := s.name(asked.Digest)
	verdict, tries, err := s.tryRun(ctx, s.send, forgetScript, name,
		s.half(name), string(asked.State), asked.Attempt, asked.Created.UnixMilli())
	switch {
	case err != nil:
		return err
	case verdict == "OK", verdict == "missing" && tries > 1: // the reply to the first try was lost
		return nil
	case verdict == "missing":
		return ErrNoRecord
	case verdict == "running":
		return ErrInProgress
	case verdict == "changed":
		return ErrEntryChanged
	default:
		return outcome(verdict, nil)
	}
}
