package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency/internal/recordline"
	"github.com/idempotency-go/idempotency/internal/redisconn"
	"github.com/idempotency-go/idempotency/internal/redisscript"
)

var _ Resolver = (*RedisStore)(nil)

// UnsafeSetting is a setting of a store, or of its server, that weakens what the store promises.
type UnsafeSetting struct {
	Node    string // the server, or "client"
	Setting string
	Value   string
	Risk    string // what may happen
}

// Error describes the setting and its risk.
func (e *UnsafeSetting) Error() string {
	return fmt.Sprintf("idempotency: %s: %s is %s: %s", e.Node, e.Setting, e.Value, e.Risk)
}

// Findings splits the error of a store's Check, such as [RedisStore.Check], into single findings, so that a service can accept
// some of them. It returns none for nil.
func Findings(err error) []error {
	switch joined := err.(type) {
	case nil:
		return nil
	case interface{ Unwrap() []error }:
		return joined.Unwrap()
	default:
		return []error{err}
	}
}

// Check asks every master for the settings that the guarantees of the store rest on. Call it at start-up. It returns
// all findings joined, see [Findings]. Each is an [*UnsafeSetting] that you weigh: not every service needs its records to
// survive a loss of power. Any other error says that a server could not be asked. A setting that the server does not
// report, as with some hosted services, is skipped.
//
// It also names each right that requests need and the user of the client lacks (ACL SETUSER), and each command that the server
// does not know. It sends each command for keys that do not exist.
//
// It also compares the clock of each master with those of its replicas, and reports a difference of more than half a
// second. It asks each replica at the address that the master has for it, with the credentials of the client. A replica
// that does not answer within a second is skipped.
//
// Through a *redis.AutoPipeliner on a Cluster it asks one master only.
func (s *RedisStore) Check(ctx context.Context) error {
	if s.optionsFault != nil {
		return s.optionsFault
	}
	unsafe, failed := s.conn.Check(ctx, s.neededRights())
	findings := make([]error, len(unsafe))
	for i, found := range unsafe {
		setting := UnsafeSetting(found)
		findings[i] = &setting
	}
	return errors.Join(append(findings, failed...)...)
}

// rights returns the rights that requests need. A digest of zeros belongs to no key.
func (s *RedisStore) neededRights() redisconn.Rights {
	name := s.keyName([sha256.Size]byte{})
	return redisconn.Rights{
		Uses:    redisscript.Uses(name, name+string(recordline.AppendToken(nil)), stepsName(name)),
		Pattern: redisconn.Literal(s.keyPrefix) + "*",
	}
}

// Inspect implements [Inspector]. Redis does not know when an operation was completed, so Entry.Completed is zero. If
// somebody has taken away the expiry of a record, Redis does not know its age either. The lease then counts from now,
// as for Begin, and Entry.Remaining is zero.
func (s *RedisStore) Inspect(ctx context.Context, key Key) (Entry, error) {
	return s.InspectDigest(ctx, key.Digest())
}

// InspectDigest is Inspect for a key of which only the digest is known, as in a [Listing].
func (s *RedisStore) InspectDigest(ctx context.Context, digest [sha256.Size]byte) (Entry, error) {
	if s.optionsFault != nil {
		return Entry{}, s.optionsFault
	}
	name := s.keyName(digest)
	snapshot, err := s.conn.ReadSnapshot(ctx, name, stepsName(name))
	if err == nil && snapshot.Expiry == redisconn.NoKey {
		return Entry{}, ErrNoRecord
	}
	entry := Entry{Digest: digest}
	if err != nil {
		return entry, err
	}
	entry.Size, entry.Remaining = snapshot.Size, max(0, snapshot.Expiry)
	head, err := s.parseRecord(snapshot.Start, name)
	if err == nil {
		err = entry.addHead(head, snapshot)
	}
	switch {
	case err != nil:
		return entry, err
	case head.IsFree():
		return Entry{}, ErrNoRecord
	}
	stepsHash := parseStepsHash(head, snapshot.Hash)
	if err := entry.takeResolved(stepsHash); err != nil {
		return entry, err
	}
	if head.State != recordline.Done {
		entry.Size += entry.addSteps(stepsHash)
		return entry, nil
	}
	record, err := storedRecordFrom(head)
	if err != nil {
		return entry, err
	}
	entry.Response, entry.Status, entry.Note = record.Response, record.Response.Status, record.Response.Note
	return entry, nil
}

// showHead adds what the head of a record says, if the record as a whole has the form that its head asks for.
func (e *Entry) addHead(h recordline.Head, snapshot redisconn.Snapshot) error {
	if !h.FitsSize(snapshot.Size) {
		return fmt.Errorf("%w: %w", ErrRecordInvalid, recordline.ErrHead)
	}
	expiry := snapshot.Expiry.Milliseconds()
	if snapshot.Expiry == redisconn.NoExpiry {
		expiry = h.TTL // nothing of it is gone
	}
	left := fromMilliseconds(h.LeaseLeft(expiry))
	e.Attempt, e.Created, e.Fingerprint = h.Attempt, time.UnixMilli(h.Created), h.Fingerprint
	switch {
	case h.State == recordline.Done:
		e.State = StateCompleted
	case h.State == recordline.Released:
		e.State = StateReleased
	case left > 0:
		e.State, e.LeaseLeft = StateRunning, left
	default:
		e.State = StateAbandoned
	}
	return nil
}

// resolvedField is the field, in the hash beside a record, that says how the operation was resolved. No checkpoint has this
// name. The scripts have it in record.lua.
const resolvedField = " resolved"

// besideOf returns what is in the hash beside a record, if it is that of the record: checkpoint.lua says how that is known.
func parseStepsHash(h recordline.Head, hash map[string]string) map[string][]byte {
	if hash[""] != h.Origin() {
		return nil
	}
	all := make(map[string][]byte)
	for name, data := range hash {
		if name != "" {
			all[name] = []byte(data)
		}
	}
	return all
}

// showResolved takes how the operation was resolved from what is beside its record. The checkpoints are left.
func (e *Entry) takeResolved(stepsHash map[string][]byte) error {
	stored, ok := stepsHash[resolvedField]
	delete(stepsHash, resolvedField)
	if !ok {
		return nil
	}
	e.Size += int64(len(stored))
	var resolved Resolved
	if err := resolved.UnmarshalBinary(stored); err != nil {
		return err
	}
	e.Resolved = &resolved
	return nil
}

// Forget implements [Inspector]. One script compares and removes the record, by the clock of Redis. A forgotten answer
// comes back if a replica that does not yet know of the removal becomes the master.
//
// A record without an expiry is forgotten only if it is completed or released.
func (s *RedisStore) Forget(ctx context.Context, inspected Entry) error {
	if s.optionsFault != nil {
		return s.optionsFault
	}
	if inspected.State == "" {
		return fmt.Errorf("%w: an entry without a state", ErrRecordInvalid) // of what could not be read
	}
	name := s.keyName(inspected.Digest)
	verdict, lost, err := s.conn.Run(ctx, redisscript.Forget, name,
		stepsName(name), s.digestHalf(name), string(inspected.State), inspected.Attempt, inspected.Created.UnixMilli())
	if err == nil && verdict == "missing" && lost { // an earlier try has removed it
		return nil
	}
	return changeError(verdict, err)
}

// Resolve implements [Resolver]. One script does it, by the clock of Redis. An operation whose record has lost its expiry
// counts as running. With too few replicas for RedisOptions.Replicas, the error is that of Complete, and the operation may be
// resolved.
func (s *RedisStore) Resolve(ctx context.Context, inspected Entry, r Resolution) error {
	if s.optionsFault != nil {
		return s.optionsFault
	}
	var response []byte
	var openMarks []string
	if r.Response != nil {
		response, _ = r.Response.MarshalBinary() // never fails
	} else {
		openMarks = inspected.OpenMarks()
	}
	resolved, _ := r.Resolved(inspected).MarshalBinary() // never fails
	name := s.keyName(inspected.Digest)
	args := []any{stepsName(name), s.digestHalf(name), inspected.Attempt, inspected.Created.UnixMilli(), recordline.AppendToken(nil),
		toMilliseconds(r.TTL), response, resolved}
	for _, mark := range openMarks {
		args = append(args, mark)
	}
	verdict, _, err := s.conn.RunCopied(ctx, redisscript.Resolve, name, args...)
	return changeError(verdict, err)
}

// changed translates the reply of a script that does what an operator asks for.
func changeError(verdict string, err error) error {
	switch {
	case err != nil:
		return err
	case verdict == "missing":
		return ErrNoRecord
	case verdict == "running":
		return ErrInProgress
	case verdict == "changed":
		return ErrEntryChanged
	default:
		return verdictError(verdict, nil)
	}
}

// List implements [Inspector]. Redis keeps no users, so ListRequest.User must be empty.
//
// It goes through all keys of the database by SCAN, a thousand at a time, and reads the first 768 bytes of each record.
// So damage beyond them does not show. Redis serves others meanwhile. In a Cluster it asks every master, one after the
// other. Only a *redis.ClusterClient can do that: with any other client of a Cluster the error wraps
// [errors.ErrUnsupported].
//
// A key that has the name of a record and holds no record counts as unreadable.
func (s *RedisStore) List(ctx context.Context, request ListRequest) (Listing, error) {
	if s.optionsFault != nil {
		return Listing{}, s.optionsFault
	}
	if request.User != "" {
		return Listing{}, fmt.Errorf("idempotency: Redis keeps no users to list by: %w", errors.ErrUnsupported)
	}
	collected, err := newCollector(request)
	if err != nil {
		return Listing{}, err
	}
	lister := &redisLister{store: s, collected: collected, seenDigests: make(map[[sha256.Size]byte]bool)}
	pattern := redisconn.Literal(s.keyPrefix) + "{" + strings.Repeat("?", hex.EncodedLen(sha256.Size)) + "}"
	if err := s.conn.Scan(ctx, pattern, startSize, lister.pickNames, lister.addRecord); err != nil {
		return Listing{}, err
	}
	return collected.makeListing(), nil
}

// redisSurvey looks at the records of all servers.
type redisLister struct {
	store       *RedisStore
	collected   *collector
	seenDigests map[[sha256.Size]byte]bool // a name may be told again
}

// startSize is enough for the longest head, and behind it for the first line of the response and the longest note.
const startSize = 768

// pick returns those of the names that are to be looked at, and whether more may come.
func (l *redisLister) pickNames(names []string) (fresh []string, more bool) {
	for _, name := range names {
		digest, ok := l.store.parseKeyName(name)
		switch {
		case !ok || l.seenDigests[digest]:
		case len(l.seenDigests) == l.collected.request.Scan:
			l.collected.listing.Partial = true
			return fresh, false
		default:
			l.seenDigests[digest] = true
			fresh = append(fresh, name)
		}
	}
	return fresh, true
}

// digestIn returns the digest that is in a name, if it is one that the store gives to a record.
func (s *RedisStore) parseKeyName(name string) (digest [sha256.Size]byte, ok bool) {
	text, prefixed := strings.CutPrefix(name, s.keyPrefix+"{")
	text, closed := strings.CutSuffix(text, "}")
	if !prefixed || !closed || len(text) != hex.EncodedLen(len(digest)) {
		return digest, false
	}
	_, err := hex.Decode(digest[:], []byte(text))
	return digest, err == nil && s.keyName(digest) == name // which has no capital letters
}

// show adds the record of that name, if it is one.
func (l *redisLister) addRecord(name string, snapshot redisconn.Snapshot) {
	if snapshot.Expiry == redisconn.NoKey {
		return // in the meantime
	}
	digest, _ := l.store.parseKeyName(name)
	entry := Entry{Digest: digest, Size: snapshot.Size, Remaining: max(0, snapshot.Expiry)}
	head, err := l.store.parseRecord(snapshot.Start, name) // what is no string has no start
	if err == nil {
		err = entry.addHead(head, snapshot)
	}
	if err == nil && head.State == recordline.Done {
		err = entry.addResponseLine(head, snapshot.Size)
	}
	switch {
	case err != nil:
		l.collected.listing.Unreadable++
	case !head.IsFree():
		l.collected.addEntry(entry)
	}
}

// glance adds what the start of a completed record says of its response: the status and the note. The error says that the
// record is not as long as its start says.
func (e *Entry) addResponseLine(h recordline.Head, size int64) error {
	line, rest := recordline.ParseResponse(h.Response)
	fits := max(line.Header, line.Trailer, line.Body) <= size // so that the sum is one
	before := len(h.Line) + len(h.Response) - len(rest)
	if whole := int64(before+len("\n")) + line.Header + line.Trailer + line.Body; !line.OK || !fits || whole != size {
		return fmt.Errorf("%w: response in Redis", ErrRecordInvalid)
	}
	e.Status, e.Note = int(line.Status), line.Note
	return nil
}
