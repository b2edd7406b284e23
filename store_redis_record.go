package idempotency

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"time"
)

// The states of a record, as the scripts write them.
const (
	stateRunning  = "running"
	stateReleased = "released"
	stateDone     = "done"
)

// redisRecord is a record as Redis holds it; lua/record.lua shows the form.
type redisRecord struct {
	state    string
	token    []byte
	head     []byte
	lease    int64 // in milliseconds, when it was given
	given    int64 // the TTL that the record was given with the lease
	told     int64 // the number that the claim script has added, or zero
	record   Record
	response []byte // the stored form
}

const redisMagic = "idempotency/1"

// How many characters the words of a head have: numbers at most, all others exactly. The claim script has the same
// limits. A time of 13 digits is before the year 2286, and a duration of so many milliseconds does not overflow.
const (
	redisTokenSize   = 32
	redisKeySize     = 32 // lua/record.lua says why
	redisAttemptSize = 10
	redisTimeSize    = 13
)

var (
	errRedisHead = fmt.Errorf("%w: head of the record in Redis", ErrRecordInvalid)
	errRedisKey  = fmt.Errorf("%w: record of another key in Redis", ErrRecordInvalid)
)

// isOpen reports whether a record is running or released, so that its expiry tells more of it.
func isOpen(record []byte) bool {
	return bytes.HasPrefix(record, []byte(redisMagic+" "+stateRunning+" ")) ||
		bytes.HasPrefix(record, []byte(redisMagic+" "+stateReleased+" "))
}

// parseRecord reads the record of key. It shares the memory of value.
func parseRecord(value []byte, key string) (redisRecord, error) {
	line, rest, whole := bytes.Cut(value, []byte("\n"))
	words := lineReader{rest: line, ok: whole && !hasUpper(line) && !bytes.HasSuffix(line, []byte(" "))}
	magic := words.next("")
	r := redisRecord{state: stateOf(words.next("")), token: words.sized("token=", redisTokenSize)}
	lease, given := words.digits("lease=", redisTimeSize), words.digits("ttl=", redisTimeSize)
	attempt := words.digits("attempt=", redisAttemptSize)
	own := words.next("key=")
	fingerprint := r.record.Fingerprint.parse(words.next("fingerprint="))
	created := words.digits("created=", redisTimeSize)
	if string(magic) != redisMagic || !words.ok || len(words.rest) > 0 || !fingerprint {
		return redisRecord{}, errRedisHead
	}
	if attempt < 1 || attempt > math.MaxInt32 {
		return redisRecord{}, errRedisHead
	}
	if string(own) != key {
		return redisRecord{}, errRedisKey
	}
	r.head, r.lease, r.given = value[:len(line)+1], lease, given
	r.record.Attempt, r.record.Created = int(attempt), time.UnixMilli(created)
	switch {
	case r.state == stateDone:
		r.response = rest
	case len(rest) > 0:
		var err error
		if r.told, err = strconv.ParseInt(string(rest), 10, 64); err != nil {
			return redisRecord{}, errRedisHead
		}
	}
	return r, nil
}

// stateOf returns the state of that name, or nothing.
func stateOf(name []byte) string {
	for _, state := range []string{stateDone, stateRunning, stateReleased} {
		if string(name) == state {
			return state
		}
	}
	return ""
}

// hasUpper reports whether b has capital letters, which nothing in a head has.
func hasUpper(b []byte) bool {
	for _, c := range b {
		if 'A' <= c && c <= 'Z' {
			return true
		}
	}
	return false
}

// digits reads a number of at most so many digits.
func (l *lineReader) digits(prefix string, most int) int64 {
	word := l.next(prefix)
	n, err := strconv.ParseUint(string(word), 10, 63) // which takes no sign
	l.ok = l.ok && err == nil && len(word) <= most
	return int64(n)
}

// sized reads a word of exactly so many characters.
func (l *lineReader) sized(prefix string, size int) []byte {
	word := l.next(prefix)
	l.ok = l.ok && len(word) == size
	return word
}

// claimed returns the record of a claim with that lease.
func (r redisRecord) claimed(lease time.Duration) Record {
	r.record.LeaseLeft = lease
	r.record.Remaining = fromMilliseconds(r.told)
	return r.record
}

// decode returns the record that somebody else holds, with its response.
func (r redisRecord) decode() (Record, error) {
	switch r.state {
	case stateRunning, stateReleased:
		r.record.LeaseLeft = fromMilliseconds(r.told)
		return r.record, nil
	case stateDone:
		r.record.Response = new(Response)
		err := r.record.Response.UnmarshalBinary(r.response)
		return r.record, err
	default:
		return Record{}, fmt.Errorf("%w: state of the record in Redis", ErrRecordInvalid)
	}
}

// milliseconds returns what Redis counts. A part of one is a whole one: no lease is to end early.
func milliseconds(d time.Duration) int64 {
	n := d.Milliseconds()
	if d%time.Millisecond > 0 {
		n++
	}
	return n
}

func fromMilliseconds(n int64) time.Duration {
	return time.Duration(min(n, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}

// runningRecord is the record of a claim, byte for byte as Redis has it for as long as the claim lasts.
//
// It counts how often it was encoded. Most clients do that once they have a connection to write to, so a claim that was not
// encoded was not sent and needs no release: releases would wait for a connection too, and take the place of those that are
// needed. A *redis.AutoPipeliner encodes when it queues a command, so its claims are released in any case.
type runningRecord struct {
	text    []byte
	encoded atomic.Int32 // how often
	record  Record
	ttl     any       // in milliseconds: to put a number into an any costs an allocation
	space   [256]byte // as much as a head may have
}

// newRunningRecord returns the record of the first attempt at a new operation.
func newRunningRecord(key string, request ClaimRequest) *runningRecord {
	var token [redisTokenSize / 2]byte
	rand.Read(token[:]) // never fails
	now := time.Now().UnixMilli()
	ttl := milliseconds(max(request.TTL, request.Lease))
	r := &runningRecord{ttl: ttl, record: Record{
		Attempt: 1, Fingerprint: request.Fingerprint,
		Created: time.UnixMilli(now), LeaseLeft: request.Lease,
	}}
	b := append(r.space[:0], runningHead...)
	b = hex.AppendEncode(b, token[:])
	b = strconv.AppendInt(append(b, " lease="...), milliseconds(request.Lease), 10)
	b = strconv.AppendInt(append(b, " ttl="...), ttl, 10)
	b = append(append(b, " attempt=1 key="...), key...)
	b = hex.AppendEncode(append(b, " fingerprint="...), request.Fingerprint[:])
	b = strconv.AppendInt(append(b, " created="...), now, 10)
	r.text = append(b, '\n')
	return r
}

// next returns the record of a further attempt, which has that head in Redis.
func (r *runningRecord) next(head []byte) *runningRecord {
	return &runningRecord{text: head, record: r.record, ttl: r.ttl}
}

const runningHead = redisMagic + " " + stateRunning + " token="

// token returns the part by which the store knows the claim.
func (r *runningRecord) token() []byte { return r.text[len(runningHead):][:redisTokenSize] }

// expiry returns for how many milliseconds Redis is to keep the record, if the lease is to run for so long from now.
func (r *runningRecord) expiry(lease time.Duration) int64 {
	return r.ttl.(int64) + milliseconds(lease) - milliseconds(r.record.LeaseLeft)
}

// MarshalBinary implements [encoding.BinaryMarshaler], by which go-redis encodes what is neither text nor number.
func (r *runningRecord) MarshalBinary() ([]byte, error) {
	r.encoded.Add(1)
	return r.text, nil
}

// String is for hooks of the client that log or trace commands.
func (r *runningRecord) String() string { return string(r.text) }

// appendDone appends the record of the claim with its response to b.
func (r *runningRecord) appendDone(b []byte, resp Response) []byte {
	b = append(b, redisMagic+" "+stateDone...)
	b = append(b, r.text[len(redisMagic+" "+stateRunning):]...)
	b, _ = resp.AppendBinary(b) // never fails
	return b
}
