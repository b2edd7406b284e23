package dynamodbstore_test

import (
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"testing"
)

// itemSize returns the size of an item by the rules of the service: names and values. A number has one byte for two digits,
// and one byte more.
func itemSize(item attributes) (n int) {
	for name, value := range item {
		n += len(name)
		for kind, v := range value {
			text, _ := v.(string)
			switch kind {
			case "N":
				n += (len(text)+1)/2 + 1
			case "B":
				n += base64.StdEncoding.DecodedLen(len(text))
			default:
				n += len(text)
			}
		}
	}
	return n
}

// writeUnits returns the units for a write of size bytes.
func writeUnits(size int) int { return max(1, (size+1023)/1024) }

func randomBytes(t testing.TB, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}

// refuseSize replies like the service to an item above 400 KB.
func refuseSize(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(http.StatusBadRequest)
	_, _ = w.Write([]byte(`{"__type":"com.amazon.coral.validate#ValidationException",` +
		`"message":"Item size to update has exceeded the maximum allowed size"}`))
}
