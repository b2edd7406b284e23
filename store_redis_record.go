package idempotency

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
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
	token    string
	identity string
	lease    int64 // when it ends
	told     int64 // the number that the claim script has added, or zero
	record   Record
	response []byte // the stored form
}

const redisMagic = "idempotency/1"

// How many characters the words of a head have: numbers at most, all others exactly. The claim script has the same
// limits. A time of 13 digits is before the year 2286, so no duration until then overflows.
const (
	redisTokenSize   = 32
	redisKeySize     = 32 // lua/record.lua says why
	redisUUIDSize    = 36
	redisAttemptSize = 10
	redisTimeSize    = 13
)

var (
	errRedisHead = fmt.Errorf("%w: head of the record in Redis", ErrRecordInvalid)
	errRedisKey  = fmt.Errorf("%w: record of another key in Redis", ErrRecordInvalid)
)

// parseReply reads the record of key, as GET or the claim script return it. It shares the memory of the reply.
func parseReply(reply *redis.StringCmd, key string) (redisRecord, error) {
	head, rest, whole := strings.Cut(reply.Val(), "\n")
	line := lineReader{rest: head, ok: whole && head == strings.ToLower(head) && !strings.HasSuffix(head, " ")}
	magic := line.next("")
	r := redisRecord{state: line.next(""), lease: line.digits("lease=", redisTimeSize)}
	r.identity = line.rest
	r.token = line.sized("token=", redisTokenSize)
	attempt := line.digits("attempt=", redisAttemptSize)
	own := line.next("key=")
	operation, err := uuid.Parse(line.sized("operation=", redisUUIDSize))
	fingerprint := r.record.Fingerprint.parse(line.next("fingerprint="))
	created := line.digits("created=", redisTimeSize)
	if magic != redisMagic || !line.ok || line.rest != "" || err != nil || !fingerprint {
		return redisRecord{}, errRedisHead
	}
	if attempt < 1 || attempt > math.MaxInt32 {
		return redisRecord{}, errRedisHead
	}
	if own != key {
		return redisRecord{}, errRedisKey
	}
	r.record.Operation, r.record.Attempt = operation, int(attempt)
	r.record.Created = time.UnixMilli(created)
	switch {
	case r.state == stateDone:
		value, _ := reply.Bytes()
		r.response = value[len(head)+1:]
	case rest != "":
		if r.told, err = strconv.ParseInt(rest, 10, 64); err != nil {
			return redisRecord{}, errRedisHead
		}
	}
	return r, nil
}

// digits reads a number of at most so many digits.
func (l *lineReader) digits(prefix string, most int) int64 {
	word := l.next(prefix)
	n, err := strconv.ParseUint(word, 10, 63) // which takes no sign
	l.ok = l.ok && err == nil && len(word) <= most
	return int64(n)
}

// sized reads a word of exactly so many characters.
func (l *lineReader) sized(prefix string, size int) string {
	word := l.next(prefix)
	l.ok = l.ok && len(word) == size
	return word
}

// claimed returns the record of a claim with that lease.
func (r redisRecord) claimed(lease time.Duration) Record {
	r.record.LeaseLeft = lease
	r.record.Remaining = time.Duration(min(r.told, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond
	return r.record
}

// decode returns the record that somebody else holds, with its response.
func (r redisRecord) decode() (Record, error) {
	switch r.state {
	case stateRunning, stateReleased:
		r.record.LeaseLeft = max(0, time.Duration(r.lease-r.told)*time.Millisecond)
		return r.record, nil
	case stateDone:
		r.record.Response = new(Response)
		err := r.record.Response.UnmarshalBinary(r.response)
		return r.record, err
	default:
		return Record{}, fmt.Errorf("%w: state %q", ErrRecordInvalid, r.state)
	}
}

// encodedSize returns no less than how many bytes the completed record has.
func (c *redisClaim) encodedSize(resp Response) int { return 64 + len(c.identity) + resp.encodedSize() }

// encode appends the completed record to b.
func (c *redisClaim) encode(b []byte, resp Response) []byte {
	b = append(b, redisMagic+" "+stateDone+" lease=0 "...)
	b = append(append(b, c.identity...), '\n')
	b, _ = resp.AppendBinary(b) // never fails
	return b
}
