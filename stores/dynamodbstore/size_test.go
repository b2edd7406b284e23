package dynamodbstore_test

import (
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"testing"
)

// sizeOf returns how many bytes the service counts for an item: names and values, and for a number one byte for two digits
// and one more.
func sizeOf(item attributes) (n int) {
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

// writeUnits returns what a write of an item consumes.
func writeUnits(size int) int { return max(1, (size+1023)/1024) }

func randomBytes(t testing.TB, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}

// refusesSize answers as the service does if an item has more than 400 KB.
func refusesSize(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(http.StatusBadRequest)
	_, _ = w.Write([]byte(`{"__type":"com.amazon.coral.validate#ValidationException",` +
		`"message":"Item size to update has exceeded the maximum allowed size"}`))
}
