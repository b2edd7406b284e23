package fingerprint

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/canonicaljson"
)

// JSON gives two JSON bodies the same fingerprint if the bodies differ only in white space, in the order of members, or in how
// strings and numbers are written. JSON hashes the canonical form of RFC 8785, but treats numbers differently:
//
//   - Every digit of a number counts, because some handlers read numbers as decimals. RFC 8785 rounds numbers to 64-bit
//     floats, so 12345678901234567.01 and 12345678901234567.02 would be the same number.
//   - Negative zero (-0, -0.0) differs from zero, because a handler can tell the two apart.
//
// If an object has two names that differ in case only, such as "amount" and "Amount", the order of members counts in the
// whole body, because encoding/json reads both members into the same field and keeps the last value.
//
// JSON returns an error for
//
//   - an object with a duplicate name, because JSON parsers differ in the value that they keep;
//   - a number with a fraction or an exponent beyond the largest 64-bit float, such as 1e400, or closer to zero than the
//     smallest, such as 1e-400, because all such numbers are equal to a handler that reads floats;
//   - arrays and objects nested more than 100 deep, because the time to sort the members grows with the depth.
//
// Empty bodies and bodies of other media types are hashed as by [idempotency.FingerprintRaw].
func JSON(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
	media := contentMediaType(r)
	if len(body) == 0 || !isJSON(media) {
		return idempotency.FingerprintRaw(r, body)
	}
	form, err := canonicaljson.Form(body)
	if err != nil {
		return idempotency.Fingerprint{}, fmt.Errorf("body as JSON: %w", err)
	}
	return fingerprintAs(r, media, form)
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
}
