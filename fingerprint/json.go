package fingerprint

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/canonicaljson"
)

// JSON gives two JSON bodies the same fingerprint if they differ only in white space, in the order of members, or in how
// strings and numbers are written. It hashes the canonical form of RFC 8785, but for the numbers:
//
//   - Every digit of a number counts, because some handlers read numbers as decimals. RFC 8785 rounds them to 64-bit
//     floats, which makes 12345678901234567.01 and 12345678901234567.02 one number.
//   - A negative zero (-0, -0.0) is not zero, because the handler can tell them apart.
//
// If an object has two names that differ in case only, such as "amount" and "Amount", the order of members counts in the
// whole body, because encoding/json reads both into one field, which keeps the value of the last one.
//
// It returns an error for
//
//   - an object with the same name twice, because its meaning depends on who reads it;
//   - a number with a fraction or an exponent beyond the largest 64-bit float, such as 1e400, or nearer to zero than the
//     smallest, such as 1e-400, because all these numbers are equal to a handler that reads floats;
//   - arrays and objects nested more than 100 deep, because the time to sort them grows with their depth.
//
// Empty bodies, and those of other media types, are hashed as [idempotency.FingerprintRaw] does.
func JSON(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
	media := readableType(r)
	if len(body) == 0 || !isJSON(media) {
		return idempotency.FingerprintRaw(r, body)
	}
	form, err := canonicaljson.Form(body)
	if err != nil {
		return idempotency.Fingerprint{}, fmt.Errorf("body as JSON: %w", err)
	}
	return as(r, media, form)
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
}
