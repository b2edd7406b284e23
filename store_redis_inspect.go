package idempotency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency/internal/recordline"
	"github.com/idempotency-go/idempotency/internal/redisconn"
	"github.com/idempotency-go/idempotency/internal/redisscript"
)

var _ Resolver = (*RedisStore)(nil)

// UnsafeSetting describes a setting of a store, or of its server, that weakens the guarantees of the store.
type UnsafeSetting struct {
	Node    string // the server, or "client"
	Setting string
	Value   string
	Risk    string // the possible damage
}

// Error describes the setting and its risk.
func (e *UnsafeSetting) Error() string {
	return fmt.Sprintf("idempotency: %s: %s is %s: %s", e.Node, e.Setting, e.Value, e.Risk)
}

// Findings splits the error of a store's Check, such as [RedisStore.Check], into single findings, so that a service
// can accept some of them. Findings returns nil for a nil error.
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

// Check asks every master for the settings on which the guarantees of the store rest. Call Check at start-up. Check
// returns all findings joined; [Findings] splits them. A finding is one of these:
//
//   - An [*UnsafeSetting]. Weigh each one: for example, only some services need records that survive a loss of power.
//   - Any other error: a server could not be asked.
//
// Check skips a setting that the server does not report, as with some hosted services.
//
// Check reports each right that requests need and the user of the client lacks (ACL SETUSER), and each command that
// the server does not know. To find them, Check sends each command for keys that do not exist.
//
// Check also compares the clock of each master with the clocks of its replicas, and reports a difference of more than
// half a second. Check connects to each replica at the address that the master has for the replica, with the
// credentials of the client, and skips a replica that does not answer within a second.
//
// Through a *redis.AutoPipeliner on a Cluster, Check asks only one master.
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

// neededRights returns the rights that requests need. The ID of zeros belongs to no operation, and the digest of zeros to no
// user.
func (s *RedisStore) neededRights() redisconn.Rights {
	name := s.keyName(uuid.Nil)
	uses := redisscript.Uses(name, name+string(recordline.AppendToken(nil)), stepsName(name))
	if s.maxUserRecords > 0 {
		uses = append(uses, redisscript.IndexUses(s.indexName([16]byte{}))...)
	}
	return redisconn.Rights{Uses: uses, Pattern: redisconn.Literal(s.keyPrefix) + "*"}
}

// Inspect implements [Inspector]. Redis does not store when an operation was completed, so Entry.Completed is zero. A
// record without an expiry (after the command PERSIST, for example) hides its age: Inspect then counts the
// lease from now, as Begin does, and Entry.Remaining is zero.
func (s *RedisStore) Inspect(ctx context.Context, key Key) (Entry, error) {
	user := digestUser(key.User)
	return s.inspectRecord(ctx, key.OperationID(), &user)
}

// InspectOperation is like Inspect for a caller who knows only the ID of the operation, for example from a log.
func (s *RedisStore) InspectOperation(ctx context.Context, operation uuid.UUID) (Entry, error) {
	return s.inspectRecord(ctx, operation, nil)
}

// inspectRecord returns the entry of operation. If user is not nil, the record must have this digest of the user.
func (s *RedisStore) inspectRecord(ctx context.Context, operation uuid.UUID, user *[16]byte) (Entry, error) {
	if s.optionsFault != nil {
		return Entry{}, s.optionsFault
	}
	name := s.keyName(operation)
	snapshot, err := s.conn.ReadSnapshot(ctx, name, stepsName(name))
	if err == nil && snapshot.Expiry == redisconn.NoKey {
		return Entry{}, ErrNoRecord
	}
	entry := Entry{Operation: operation}
	if err != nil {
		return entry, err
	}
	entry.Size, entry.Remaining = snapshot.Size, max(0, snapshot.Expiry)
	head, err := s.parseRecord(snapshot.Start, name, user)
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

// addHead adds the fields in the head of a record to e. The error wraps [ErrRecordInvalid] if the size of the record
// does not fit the head.
func (e *Entry) addHead(h recordline.Head, snapshot redisconn.Snapshot) error {
	if !h.FitsSize(snapshot.Size) {
		return fmt.Errorf("%w: %w", ErrRecordInvalid, recordline.ErrHead)
	}
	expiry := snapshot.Expiry.Milliseconds()
	if snapshot.Expiry == redisconn.NoExpiry {
		expiry = h.TTL // the whole TTL is left
	}
	left := fromMilliseconds(h.LeaseLeft(expiry))
	e.Attempt, e.Created, e.Fingerprint, e.Ended = h.Attempt, time.UnixMilli(h.Created), h.Fingerprint, EndReason(h.Ended)
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

// resolvedField is the field for a [Resolved] in the hash beside a record. No checkpoint has this name. In the
// scripts, record.lua defines the same name.
const resolvedField = " resolved"

// parseStepsHash returns the checkpoints and the resolution in the hash beside a record. The result is nil if the
// hash belongs to a record of an earlier operation; checkpoint.lua describes the comparison.
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

// takeResolved moves the resolution of the operation from stepsHash to e, and leaves the checkpoints in stepsHash.
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

// Forget implements [Inspector]. One script compares the record and removes the record, by the clock of Redis. If a
// replica that has not yet received the removal becomes the master, a forgotten answer comes back.
//
// Forget removes a record without an expiry only if the record is completed or released.
func (s *RedisStore) Forget(ctx context.Context, inspected Entry) error {
	if s.optionsFault != nil {
		return s.optionsFault
	}
	if inspected.State == "" {
		return fmt.Errorf("%w: the entry has no state, because its record could not be read", ErrRecordInvalid)
	}
	name := s.keyName(inspected.Operation)
	verdict, replyLost, err := s.conn.Run(ctx, redisscript.Forget, name,
		stepsName(name), s.operationIn(name), string(inspected.State), inspected.Attempt, inspected.Created.UnixMilli())
	if err == nil && verdict == "missing" && replyLost { // an earlier try has removed the record
		return nil
	}
	return changeError(verdict, err)
}

// Resolve implements [Resolver] by one script, with the clock of Redis. An operation whose record has no expiry
// counts as running. With fewer replicas than RedisOptions.Replicas, Resolve returns the error that Complete would
// return, although the operation may be resolved.
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
	name := s.keyName(inspected.Operation)
	args := []any{stepsName(name), s.operationIn(name), inspected.Attempt, inspected.Created.UnixMilli(),
		recordline.AppendToken(nil), toMilliseconds(r.TTL), response, resolved}
	for _, mark := range openMarks {
		args = append(args, mark)
	}
	verdict, _, err := s.conn.RunCopied(ctx, redisscript.Resolve, name, args...)
	return changeError(verdict, err)
}

// changeError translates the verdict of the scripts for Forget and Resolve into an error.
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

// List implements [Inspector]. Redis keeps a digest of the user, so List finds the records of ListRequest.User, but
// Entry.Key is empty. For an Endpoint or an ID, the error wraps [errors.ErrUnsupported].
//
// List goes through all keys of the database by SCAN, a thousand at a time, and reads the first 768 bytes of each
// record, so List overlooks damage after byte 768. Redis serves other clients meanwhile. In a Cluster, List
// asks every master in turn. Only a *redis.ClusterClient can ask every master: with any other client of a Cluster,
// the error wraps [errors.ErrUnsupported].
//
// ListRequest.Progress gets the approximate number of keys that SCAN has passed, and the number of keys in the
// database, or zero if the client has no right to DBSIZE.
//
// A key that has the name of a record, but holds no record, counts as unreadable.
func (s *RedisStore) List(ctx context.Context, request ListRequest) (Listing, error) {
	if s.optionsFault != nil {
		return Listing{}, s.optionsFault
	}
	if request.Endpoint != "" || request.ID != "" {
		return Listing{}, fmt.Errorf("idempotency: Redis keeps neither endpoints nor clients' keys: "+
			"list by User, States, Since and Before, or inspect the whole key: %w", errors.ErrUnsupported)
	}
	lister := &redisLister{store: s, countedOperations: make(map[uuid.UUID]bool)}
	if request.User != "" {
		user := digestUser(request.User)
		lister.user = &user
		request.User = "" // the entries have no user that could match
	}
	collected, err := newCollector(request)
	if err != nil {
		return Listing{}, err
	}
	lister.collected = collected
	if err := s.conn.Scan(ctx, redisconn.KeyScan{
		Pattern:   redisconn.Literal(s.keyPrefix) + "{" + strings.Repeat("?", len(uuid.Nil.String())) + "}",
		PickNames: lister.pickNames, StartSize: startSize, VisitKey: lister.addRecord, Progress: request.Progress,
	}); err != nil {
		return Listing{}, err
	}
	return collected.makeListing(), nil
}

// redisLister collects the records of all servers for List.
type redisLister struct {
	store     *RedisStore
	collected *collector
	user      *[16]byte // the digest of the user whose records are to be listed, or nil for all users
	readCount int

	// SCAN may return a name more than once, so the lister remembers what it has counted: matching and unreadable records.
	// The other records, of which there may be millions, are not remembered.
	countedOperations map[uuid.UUID]bool
}

// startSize covers the longest head, the first line of the response, and the longest note.
const startSize = 768

// pickNames returns the names of records in a page of SCAN, each once, but no names of records that the lister has
// counted before. The result more is false once the lister has read ListRequest.Scan records.
func (l *redisLister) pickNames(names []string) (picked []string, more bool) {
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		operation, ok := l.store.parseKeyName(name)
		switch {
		case !ok || l.countedOperations[operation]:
		case l.readCount == l.collected.request.Scan:
			l.collected.listing.Partial = true
			return picked, false
		default:
			l.readCount++
			picked = append(picked, name)
		}
	}
	return picked, true
}

// parseKeyName returns the operation in name. The result ok reports whether name is the name of a record.
func (s *RedisStore) parseKeyName(name string) (operation uuid.UUID, ok bool) {
	text, prefixed := strings.CutPrefix(name, s.keyPrefix+"{")
	text, closed := strings.CutSuffix(text, "}")
	operation, err := uuid.Parse(text)
	return operation, prefixed && closed && err == nil && s.keyName(operation) == name // uuid.Parse accepts other forms
}

// addRecord adds the record with the given name to the listing. The error is that of ListRequest.Each.
func (l *redisLister) addRecord(name string, snapshot redisconn.Snapshot) error {
	if snapshot.Expiry == redisconn.NoKey {
		return nil // the record has expired since SCAN
	}
	operation, _ := l.store.parseKeyName(name)
	entry := Entry{Operation: operation, Size: snapshot.Size, Remaining: max(0, snapshot.Expiry)}
	head, err := l.store.parseRecord(snapshot.Start, name, nil) // Start is empty if the value is no string
	if err == nil {
		err = entry.addHead(head, snapshot)
	}
	if err == nil && head.State == recordline.Done {
		err = entry.addResponseLine(head, snapshot.Size)
	}
	if err == nil && !l.matches(head, entry) {
		return nil
	}
	l.countedOperations[operation] = true
	if err != nil {
		l.collected.listing.Unreadable++
		return nil
	}
	return l.collected.addEntry(entry)
}

// matches reports whether the record with the given head and entry is to be listed.
func (l *redisLister) matches(head recordline.Head, entry Entry) bool {
	return !head.IsFree() && (l.user == nil || head.User == *l.user) && l.collected.request.Matches(entry)
}

// addResponseLine adds the status and the note from the first line of a completed response to e. The error reports
// that the sizes in this line do not add up to size, the size of the whole record.
func (e *Entry) addResponseLine(h recordline.Head, size int64) error {
	line, rest := recordline.ParseResponse(h.Response)
	fits := max(line.Header, line.Trailer, line.Body) <= size // so that the sum cannot overflow
	lineBytes := len(h.Line) + len(h.Response) - len(rest)
	if whole := int64(lineBytes+len("\n")) + line.Header + line.Trailer + line.Body; !line.OK || !fits || whole != size {
		return fmt.Errorf("%w: the response in Redis has the wrong length", ErrRecordInvalid)
	}
	e.Status, e.Note = int(line.Status), line.Note
	return nil
}
