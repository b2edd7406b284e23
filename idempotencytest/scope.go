package idempotencytest

import (
	"strings"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

var scopeCases = []testCase{{
	name: "distinct keys",
	rule: "Keys that differ in any part belong to different operations, for all characters and all lengths.",
	checkRule: func(t *trial) {
		keys := makeConfusableKeys(uuid.NewString())
		owns := make([]beginResult, len(keys))
		for i, key := range keys {
			owns[i] = t.withKey(key).claimKey(request)
			t.completeClaim(owns[i], newReceipt(key.String()))
		}
		for i, key := range keys {
			t.checkResponse(t.withKey(key).readHeldRecord(request), owns[i], newReceipt(key.String()))
		}
	},
}}

// makeConfusableKeys returns keys that are all different, but similar. Each nonce gives other keys.
func makeConfusableKeys(nonce string) []idempotency.Key {
	const user, endpoint, id = "user", "POST /", "id"
	var keys []idempotency.Key
	add := func(user, endpoint, id string) {
		keys = append(keys, idempotency.Key{User: nonce + user, Endpoint: endpoint, ID: id})
	}

	// One part differs slightly.
	for _, part := range []string{
		"", "a", "A", "a ", " a", "a\x00", "\x00a", "a\n", "a\r\n", "0", "00", "*", "?", "%", "_", "%61", `\`, `\\`, "'", `"`,
		"{a}", "{b}", "\u00e9", "e\u0301", "\u00c5", "\u212b", "\ufffd", "\xff", "\xfe",
	} {
		add(part, endpoint, id)
		add(user, part, id)
		add(user, endpoint, part)
	}
	for _, length := range []int{255, 10_000} {
		for _, end := range []string{"", "a", "b"} {
			add(strings.Repeat("x", length)+end, endpoint, id)
		}
	}
	add(user, endpoint, strings.Repeat("x", 254)+"a")
	add(user, endpoint, strings.Repeat("x", 254)+"b")

	// The parts contain delimiters at their ends, so that the joined parts would be equal.
	for _, d := range []string{"", ":", "/", "|", ",", ";", "-", "_", ".", "#", "\x00", "\x1f", "\n", "\r\n", "{", "}"} {
		add(d+"ab", "c"+d+"d", "e"+d)
		add(d+"a", "b"+d+"c"+d+"d", "e"+d)
		add(d+"a", "b"+d+"c", "d"+d+"e"+d)
	}
	return keys
}
