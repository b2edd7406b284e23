package idempotency

import (
	"fmt"
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
	record   Record
	response []byte // the stored form
}

const redisMagic = "idempotency/1"

var errRedisHead = fmt.Errorf("%w: head of the record in Redis", ErrRecordInvalid)

// parseReply reads a record, as GET or the claim script return it. It shares the memory of the reply.
func parseReply(reply *redis.StringCmd) (redisRecord, error) {
	head, rest, whole := strings.Cut(reply.Val(), "\n")
	line := lineReader{rest: head, ok: whole}
	magic := line.next("")
	r := redisRecord{state: line.next("")}
	lease := line.number("lease=")
	r.identity = line.rest
	r.token = line.next("token=")
	r.record.Attempt = int(line.number("attempt="))
	operation, err := uuid.Parse(line.next("operation="))
	fingerprint := r.record.Fingerprint.parse(line.next("fingerprint="))
	created := line.number("created=")
	if magic != redisMagic || !line.ok || line.rest != "" || err != nil || !fingerprint {
		return redisRecord{}, errRedisHead
	}
	r.record.Operation = operation
	r.record.Created = time.UnixMilli(created)
	switch {
	case r.state == stateDone:
		value, _ := reply.Bytes()
		r.response = value[len(head)+1:]
	case rest != "": // as the script has added it, unless the claim is our own
		now, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			return redisRecord{}, errRedisHead
		}
		r.record.LeaseLeft = max(0, time.Duration(lease-now)*time.Millisecond)
	}
	return r, nil
}

// decode returns the record with its response.
func (r redisRecord) decode() (Record, error) {
	switch r.state {
	case stateRunning, stateReleased:
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
