package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// goldenKeys are keys whose digests and names are kept for ever.
var goldenKeys = []idempotency.Key{
	{},
	{User: "alice", Endpoint: "POST /payments", ID: "k"},
	{User: "alice", Endpoint: "POST /payments", ID: "8e03978e-40d5-43dd-bc93-6894a57f9324"},
	{User: "a\x00\xff", Endpoint: "PATCH /caf%C3%A9", ID: `a"b\c,;`},
	{User: strings.Repeat("u", 255), Endpoint: "", ID: strings.Repeat("k", 255)},
	{User: strings.Repeat("u", 256), Endpoint: "POST /" + strings.Repeat("é", 200), ID: "k"},
}

// goldenTargets are request lines whose keys are kept for ever.
var goldenTargets = []string{
	"POST /payments", "PATCH /a%2Fb/?x=1", "POST //a/../b", "POST http://example.org/a%20b?x", "POST /" + strings.Repeat("p", 300),
}

// goldenRequests are requests whose fingerprints are kept for ever.
var goldenRequests = []struct {
	media, query, body string
	header             http.Header
}{
	{"", "", "", nil},
	{"text/plain; charset=utf-8", "q=1&q=2", "hello", nil},
	{"Application/JSON", "", `{"b": [1e1, -0.0, 1.50, 9007199254740993], "a": "é\u00e9\/\ud83d\ude00"}`, nil},
	{"application/merge-patch+json", "", `{"é":1,"e":2,"\u0000":{"z":null,"a":true}}`, nil},
	{"multipart/form-data; boundary=x", "", form("x", "1", "2").body, nil},
	{js, "", "{}", http.Header{"Content-Encoding": {"gzip"}, "X-Http-Method-Override": {"PUT"}, "Stripe-Account": {"a", "b"}}},
}

var fingerprintFuncs = []struct {
	name string
	f    idempotency.FingerprintFunc
}{
	{"raw", idempotency.FingerprintRaw}, {"json", idempotency.FingerprintJSON}, {"multipart", idempotency.FingerprintMultipart},
}

// goldenNames writes down what tells one operation from another: digests of keys, names in Redis, keys and fingerprints of
// requests. They have no version in the store. If one of them changes, all that is stored is forgotten.
func goldenNames(t *testing.T) string {
	var b strings.Builder
	server, client := testservice.NewMiniredis(t)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	sealed := testservice.MustSeal(t, idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "sealed:"}), testservice.Sealing("2026"))
	for _, key := range goldenKeys {
		fmt.Fprintf(&b, "key %q %q %q\n digest %x\n operation %v\n", key.User, key.Endpoint, key.ID, key.Digest(), key.OperationID())
		bounded := key.Bounded()
		fmt.Fprintf(&b, " bounded %q %q %q\n", bounded.User, bounded.Endpoint, bounded.ID)
		testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour))
		fmt.Fprintf(&b, " redis %s\n", server.Keys()[0])
		server.FlushAll()
		testservice.MustClaim(t, sealed, key, testservice.AttemptFor(time.Hour))
		name := server.Keys()[0]
		fmt.Fprintf(&b, " sealed %s %s\n", name, goldenFingerprint.FindString(client.Get(t.Context(), name).Val()))
		server.FlushAll()
	}
	for _, line := range goldenTargets {
		method, target, _ := strings.Cut(line, " ")
		key, _ := begunBy(t, httptest.NewRequest(method, target, nil), nil)
		fmt.Fprintf(&b, "request %s\n endpoint %q\n", line, key.Endpoint)
	}
	for _, request := range goldenRequests {
		fmt.Fprintf(&b, "request %q %q %q %q\n", request.media, request.query, request.body, request.header)
		for _, row := range fingerprintFuncs {
			r := httptest.NewRequest(http.MethodPost, "/payments?"+request.query, strings.NewReader(request.body))
			r.Header.Set("Content-Type", request.media)
			for name, values := range request.header {
				r.Header[name] = values
			}
			_, fp := begunBy(t, r, row.f)
			fmt.Fprintf(&b, " %s %s\n", row.name, fp)
		}
	}
	return b.String()
}

// begunBy returns key and fingerprint by which a middleware asks its store for a request.
func begunBy(t *testing.T, r *http.Request, f idempotency.FingerprintFunc) (key idempotency.Key, fp idempotency.Fingerprint) {
	t.Helper()
	store := begunStore{testservice.NewSpyStore(), &key, &fp}
	opts := idempotency.Options{Fingerprint: f, FingerprintHeaders: []string{"Stripe-Account"}}
	r.Header.Set("Idempotency-Key", "k")
	testservice.Setup{Store: store, Opts: opts}.Guard(t, testservice.Echo).Handler.ServeHTTP(httptest.NewRecorder(), r)
	return key, fp
}

// begunStore notes what it is asked for.
type begunStore struct {
	idempotency.Store
	key *idempotency.Key
	fp  *idempotency.Fingerprint
}

func (s begunStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	*s.key, *s.fp = key, request.Fingerprint
	return s.Store.Begin(ctx, key, request)
}

// Names and fingerprints are the same in every version: while a service is replaced, both versions ask the same store.
func TestGoldenNames(t *testing.T) {
	t.Parallel()
	path := filepath.Join("testdata", "names", goldenVersion+".txt")
	have, err := os.ReadFile(path)
	names := goldenNames(t)
	if *update && string(have) != names {
		have, err = []byte(names), writeGolden(path, names)
	}
	require.NoError(t, err)
	require.Equal(t, string(have), names)
}
