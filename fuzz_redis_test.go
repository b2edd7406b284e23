package idempotency_test

import (
	"encoding/hex"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// redisForm is the head of a record in Redis as record.lua describes it.
var redisForm = regexp.MustCompile(`^idempotency/1 (running|released|done) token=([^ \n]{32}) lease=([0-9]{1,13}) ` +
	`ttl=([0-9]{1,13}) attempt=([0-9]{1,10}) key=([^ \n]+) ` +
	`fingerprint=([0-9a-f]{64}) created=([0-9]{1,13})\n`)

var hexToken = regexp.MustCompile(`^[0-9a-f]{32}$`)

// redisEntry is a record in Redis that was read in another way than the package does.
type redisEntry struct {
	state      string
	lease, ttl time.Duration
	record     idempotency.Record
}

// redisEntryOf reads the record of a key. It reports false for what no script writes.
func redisEntryOf(value, key string) (e redisEntry, ok bool) {
	m := redisForm.FindStringSubmatch(value)
	if m == nil || m[6] != key || strings.ContainsAny(m[0], "ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		return e, false
	}
	number := func(text string) int64 {
		n, _ := strconv.ParseInt(text, 10, 64)
		return n
	}
	rest, attempt := value[len(m[0]):], number(m[5])
	if attempt < 1 || attempt > math.MaxInt32 {
		return e, false
	}
	e = redisEntry{state: m[1], lease: time.Duration(number(m[3])), ttl: time.Duration(number(m[4]))}
	e.record.Attempt, e.record.Created = int(attempt), time.UnixMilli(number(m[8]))
	_, _ = hex.Decode(e.record.Fingerprint[:], []byte(m[7]))
	if e.state != "done" {
		return e, rest == "" && hexToken.MatchString(m[2])
	}
	resp, ok := decodeByForm([]byte(rest))
	e.record.Response = &resp
	return e, ok
}

// after returns the record as the store shows it when its expiry is so many milliseconds away.
func (e redisEntry) after(expiry int64) idempotency.Record {
	if e.state == "running" {
		left := max(0, e.lease-(e.ttl-time.Duration(expiry)))
		e.record.LeaseLeft = left * time.Millisecond
	}
	return e.record
}

// FuzzRedisRecord puts anything under the name of a record, and asks the store for it. The store shows what another reader
// sees there, claims what may be claimed, and leaves the rest as it is.
func FuzzRedisRecord(f *testing.F) {
	server := miniredis.RunT(f) // its clock stands still
	server.RequireAuth(servertest.RedisPassword())
	client := testservice.NewRedisClient(f, server.Addr(), testservice.WithContextTimeout)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	testservice.MustComplete(f, store, testservice.NumberedKey(1), frozen)
	name := server.Keys()[0]
	key := strings.TrimPrefix(name, "idempotency:{")[:32]
	done := client.Get(f.Context(), name).Val()
	const expiry = 3_600_000
	for _, as := range recordStates {
		for _, left := range []uint32{expiry, expiry - 59_999, expiry - 60_000, 1} {
			f.Add(as(done), left, true)
			f.Add(as(done), left, false)
		}
		f.Add(word("fingerprint", "fingerprint="+strings.Repeat("0", 64))(as(done)), uint32(1), true)
		f.Add(word("attempt", "attempt=2147483647")(as(done)), uint32(1), true)
		for _, damage := range malformed {
			f.Add(damage(as(done)), uint32(1), true)
		}
	}
	f.Fuzz(func(t *testing.T, value string, expiry uint32, takeOver bool) {
		expiry = max(expiry, 1)
		require.NoError(t, client.Set(t.Context(), name, value, time.Duration(expiry)*time.Millisecond).Err())
		request := testservice.AttemptFor(time.Hour)
		request.TakeOver = takeOver
		got, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), request)
		entry, ok := redisEntryOf(value, key)
		stored := client.Get(t.Context(), name).Val()
		if !ok {
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid, "%q", value)
			require.Nil(t, claim)
			require.Equal(t, value, stored)
			return
		}
		require.NoError(t, err, "%q", value)
		want := entry.after(int64(expiry))
		lapsed := entry.state == "running" && takeOver && want.LeaseLeft == 0
		if !(entry.state == "released" || lapsed) || want.Fingerprint != request.Fingerprint || want.Attempt == math.MaxInt32 {
			require.Nil(t, claim, "%q", value)
			require.Equal(t, want, got)
			require.Equal(t, value, stored)
			return
		}
		require.NotNil(t, claim, "%q", value)
		want.Attempt++
		want.LeaseLeft, want.Remaining = request.Lease, time.Duration(expiry)*time.Millisecond
		require.Equal(t, want, got)
		entry, ok = redisEntryOf(stored, key)
		require.True(t, ok, "%q", stored)
		want.Remaining = 0
		require.Equal(t, want, entry.after(client.PTTL(t.Context(), name).Val().Milliseconds()))
	})
}
