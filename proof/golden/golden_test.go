package golden_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/proof/golden"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// goldenVersion is the version of the forms that this package writes. testdata/README.md describes how to add a new
// version.
const goldenVersion = "v1"

// goldenRecord is an operation that leaves a record in Redis.
type goldenRecord struct {
	handler      http.HandlerFunc
	isRunning    bool // the golden file has the record while the handler runs
	isSealed     bool
	requireFound func(*testing.T, *goldenService, *goldenAnswer) // checks got, the answer to a request; nil: requireCompleted
}

// goldenAnswer is an answer with its trailer.
type goldenAnswer struct {
	testservice.Answer
	trailer http.Header
}

var goldenRecords = map[string]goldenRecord{
	"running":         {handler: testservice.Echo, isRunning: true, requireFound: requireRunning},
	"running-sealed":  {handler: testservice.Echo, isRunning: true, isSealed: true, requireFound: requireRunning},
	"released":        {handler: testservice.Status(http.StatusServiceUnavailable), requireFound: requireReleased},
	"released-sealed": {handler: testservice.Status(http.StatusServiceUnavailable), isSealed: true, requireFound: requireReleased},
	"done":            {handler: goldenHandler},
	"done-sealed":     {handler: goldenHandler, isSealed: true},
	"done-empty":      {handler: testservice.Status(http.StatusNoContent)},
	"done-staged":     {handler: answerWith(strings.Repeat("0123456789abcde\n", 200))},
	"done-header":     {handler: withLargeHeader},
	"done-trailer":    {handler: withTrailers},
	"omitted":         {handler: answerWith(strings.Repeat("x", goldenLimit+1)), requireFound: requireOmitted(http.StatusOK)},
	"omitted-sealed": {
		handler: answerWith(strings.Repeat("x", goldenLimit+1)), isSealed: true, requireFound: requireOmitted(http.StatusOK),
	},
	"done-later": {handler: failOnce},
	"done-note":  {handler: withNote},
}

// goldenLimit is the largest body that the service stores.
const goldenLimit = 4000

func goldenHandler(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Set-Cookie", "a=1; Expires=Thu, 01 Jan 2099 00:00:00 GMT")
	w.Header().Add("Set-Cookie", "b=2")
	w.Header().Set("Content-Type", "application/json")
	w.Header()["Date"] = nil
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "{\"id\":1}\n\x00\xff")
}

func answerWith(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

func withLargeHeader(w http.ResponseWriter, _ *http.Request) {
	for i := range 40 {
		w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("v", 100))
	}
	w.Header()["X-Odd\\:Name"] = []string{" a: b\\c\r\nd ", "caf\xe9"}
	w.WriteHeader(http.StatusAccepted)
}

func withTrailers(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Trailer", "X-Sum")
	_, _ = io.WriteString(w, "body")
	w.(http.Flusher).Flush()
	w.Header().Set("X-Sum", "1")
	w.Header().Set(http.TrailerPrefix+"X-Late", "2")
}

func withNote(w http.ResponseWriter, r *http.Request) {
	_ = idempotency.Annotate(r.Context(), "charge ch_1: settled")
	goldenHandler(w, r)
}

// failOnce fails in the first attempt, and answers in the second attempt.
func failOnce(w http.ResponseWriter, r *http.Request) {
	op, _ := idempotency.FromContext(r.Context())
	if op.Attempt == 1 {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	goldenHandler(w, r)
}

// goldenService is a service that makes the golden records.
type goldenService struct {
	*testservice.Service
	client        *redis.Client
	golden        goldenRecord
	name          string // the name of the golden record
	onHandle      func() // called by the handler; nil: nothing to do
	lastOperation idempotency.Operation
}

func newGoldenService(t *testing.T, name string, golden goldenRecord) *goldenService {
	t.Helper()
	s := &goldenService{client: testservice.NewRedisClient(t, servertest.Redis(t).Addr()), golden: golden, name: name}
	var store idempotency.Store = idempotency.NewRedisStore(s.client, idempotency.RedisOptions{})
	if golden.isSealed {
		store = testservice.MustSeal(t, store, testservice.Sealing("2026"))
	}
	s.Service = testservice.Setup{
		Store: store, User: func(*http.Request) (string, error) { return "alice", nil },
		Opts: idempotency.Options{TTL: goldenTTL, Lease: time.Minute, MaxResponse: goldenLimit},
	}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		s.lastOperation = op
		if s.onHandle != nil {
			s.onHandle()
		}
		golden.handler(w, r)
	})
	return s
}

const goldenTTL = time.Hour

func (s *goldenService) sendRequest(body string) *goldenAnswer {
	r := httptest.NewRequest(http.MethodPost, "/payments?currency=EUR", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", `"`+s.name+`"`)
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	w := httptest.NewRecorder()
	s.Handler.ServeHTTP(w, r)
	result := w.Result()
	return &goldenAnswer{testservice.Answer{Status: w.Code, Header: result.Header, Body: w.Body.String(), Err: nil}, result.Trailer}
}

const goldenBody = `{"amount":1}`

// makeRecord runs the operation, and returns the record as a golden file: the key in Redis, and the value.
func (s *goldenService) makeRecord(t *testing.T) (file string) {
	t.Helper()
	snapshot := func() {
		names := testservice.RedisKeys(t, s.client, "")
		require.Len(t, names, 1)
		file = names[0] + "\n" + s.client.Get(t.Context(), names[0]).Val()
	}
	if s.golden.isRunning {
		s.onHandle = snapshot
	}
	if first := s.sendRequest(goldenBody); s.name == "done-later" {
		require.Equal(t, http.StatusInternalServerError, first.Status)
		s.sendRequest(goldenBody)
	}
	if !s.golden.isRunning {
		snapshot()
	}
	return file
}

// goldenMark is the header of a sealed answer.
const goldenMark = ":sealed/1 2026\n"

var goldenWords = regexp.MustCompile(`(token|created)=\S+`)

var goldenFingerprint = regexp.MustCompile(`fingerprint=\S+`)

// normalize replaces the words of file that differ in each run, and decrypts a sealed answer.
func normalize(t *testing.T, file string) string {
	t.Helper()
	random := map[string]string{
		"token": "0123456789abcdef0123456789abcdef", "created": "1763712000000",
	}
	name, value, _ := strings.Cut(file, "\n")
	head, rest, _ := strings.Cut(value, "\n")
	if strings.Contains(rest, goldenMark) {
		rest = unsealByHand(t, name, head, rest)
	}
	head = goldenWords.ReplaceAllStringFunc(head, func(word string) string {
		kind, _, _ := strings.Cut(word, "=")
		return kind + "=" + random[kind]
	})
	return name + "\n" + head + "\n" + rest
}

// unsealByHand decrypts a sealed response independently of the package, in the form of version 1.
func unsealByHand(t *testing.T, name, head, text string) string {
	t.Helper()
	resp, ok := testservice.ParseResponseByPattern([]byte(text))
	require.True(t, ok)
	require.EqualValues(t, goldenMark, resp.Header)
	body := resp.Body
	word := func(name string) string { return regexp.MustCompile(name + `=(\S+)`).FindStringSubmatch(head)[1] }
	var attempt int
	_, err := fmt.Sscan(word("attempt"), &attempt)
	require.NoError(t, err)
	operation, err := uuid.Parse(regexp.MustCompile(`\{(.*)\}`).FindStringSubmatch(name)[1])
	require.NoError(t, err)
	fingerprint, err := hex.DecodeString(word("fingerprint"))
	require.NoError(t, err)

	aad := append([]byte("idempotency/seal/1 answer\n"), operation[:]...)
	aad = binary.BigEndian.AppendUint64(aad, uint64(attempt))
	aad = append(aad, fingerprint...)
	aad = append(binary.BigEndian.AppendUint64(aad, uint64(resp.Status)), "2026"...)
	secret := sha256.Sum256([]byte("2026"))
	key, err := hkdf.Key(sha256.New, secret[:], nil, "idempotency/seal/1 AES-256-GCM", 32)
	require.NoError(t, err)
	block, err := aes.NewCipher(key)
	require.NoError(t, err)
	gcm, err := cipher.NewGCM(block)
	require.NoError(t, err)
	plain, err := gcm.Open(nil, body[:12], body[12:], aad)
	require.NoError(t, err)
	resp.Body = nil
	return fmt.Sprintf("%+v %q", resp, plain)
}

// Today's records equal the golden files of the current version.
func TestGoldenRedisRecordsAreWritten(t *testing.T) {
	t.Parallel()
	for name, record := range goldenRecords {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := newGoldenService(t, name, record).makeRecord(t)
			path := filepath.Join("testdata", "redis", goldenVersion, name+".txt")
			have, err := os.ReadFile(path)
			if *golden.Update && (err != nil || normalize(t, string(have)) != normalize(t, file)) {
				if !strings.Contains(file, goldenMark) { // a sealed answer is bound to the operation, so the file stays as it is
					file = normalize(t, file)
				}
				have, err = []byte(file), golden.WriteFile(path, file)
			}
			require.NoError(t, err)
			require.Equal(t, normalize(t, string(have)), normalize(t, file))
		})
	}
}

// The library reads the records of every released version, and answers requests as that version did.
func TestGoldenRedisRecordsAreRead(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/redis/v*/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	t.Attr("golden-records-read", strconv.Itoa(len(files)))
	for _, path := range files {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			name := strings.TrimSuffix(filepath.Base(path), ".txt")
			require.Contains(t, goldenRecords, name)
			golden := goldenRecords[name]
			file, err := os.ReadFile(path)
			require.NoError(t, err)
			s := newGoldenService(t, name, golden)
			key, value, _ := strings.Cut(string(file), "\n")
			require.NoError(t, s.client.Set(t.Context(), key, value, goldenTTL).Err())
			got := s.sendRequest(goldenBody)
			if golden.requireFound != nil {
				golden.requireFound(t, s, got)
				return
			}
			requireCompleted(t, s, got)
		})
	}
}

// requireCompleted requires that got is a replay of the handler's answer.
func requireCompleted(t *testing.T, s *goldenService, got *goldenAnswer) {
	t.Helper()
	require.Zero(t, s.Runs.Load(), "the record was not found")
	first := newGoldenService(t, s.name, s.golden)
	want := first.sendRequest(goldenBody)
	if want.Status == http.StatusInternalServerError {
		want = first.sendRequest(goldenBody)
	}
	testservice.RequireReplay(t, want.Answer, got.Answer)
	require.Equal(t, want.trailer, got.trailer)
	testservice.RequireProblem(t, s.sendRequest("another body").Answer, http.StatusConflict, "key-reused")
}

func requireOmitted(status int) func(*testing.T, *goldenService, *goldenAnswer) {
	return func(t *testing.T, s *goldenService, got *goldenAnswer) {
		t.Helper()
		problem := testservice.RequireProblem(t, got.Answer, http.StatusConflict, "not-replayable")
		require.Equal(t, status, problem.OriginalStatus)
		require.Zero(t, s.Runs.Load())
	}
}

// requireReleased requires that the next attempt of the same operation has begun.
func requireReleased(t *testing.T, s *goldenService, _ *goldenAnswer) {
	t.Helper()
	require.EqualValues(t, 1, s.Runs.Load())
	require.Equal(t, 2, s.lastOperation.Attempt)
	names := testservice.RedisKeys(t, s.client, "")
	require.Len(t, names, 1, "it has been found")
	require.Contains(t, s.client.Get(t.Context(), names[0]).Val(), " created=1763712000000 ended=", "the operation goes on")
	testservice.RequireProblem(t, s.sendRequest("another body").Answer, http.StatusConflict, "key-reused")
}

// requireRunning requires that no handler runs until the lease has lapsed, and that the next attempt begins after
// that.
func requireRunning(t *testing.T, s *goldenService, got *goldenAnswer) {
	t.Helper()
	testservice.RequireProblem(t, got.Answer, http.StatusConflict, "in-progress")
	require.Zero(t, s.Runs.Load())
	names := testservice.RedisKeys(t, s.client, "")
	require.Len(t, names, 1)
	require.NoError(t, s.client.PExpire(t.Context(), names[0], goldenTTL-time.Minute).Err())
	require.Equal(t, http.StatusCreated, s.sendRequest(goldenBody).Status)
	require.EqualValues(t, 1, s.Runs.Load())
	require.Equal(t, 2, s.lastOperation.Attempt)
}

// goldenKeys are keys whose IDs and names must never change.
var goldenKeys = []idempotency.Key{
	{},
	{User: "alice", Endpoint: "POST /payments", ID: "k"},
	{User: "alice", Endpoint: "POST /payments", ID: "8e03978e-40d5-43dd-bc93-6894a57f9324"},
	{User: "a\x00\xff", Endpoint: "PATCH /caf%C3%A9", ID: `a"b\c,;`},
	{User: strings.Repeat("u", 255), Endpoint: "", ID: strings.Repeat("k", 255)},
	{User: strings.Repeat("u", 256), Endpoint: "POST /" + strings.Repeat("é", 200), ID: "k"},
}

// goldenTargets are request lines whose keys must never change.
var goldenTargets = []string{
	"POST /payments", "PATCH /a%2Fb/?x=1", "POST //a/../b", "POST http://example.org/a%20b?x", "POST /" + strings.Repeat("p", 300),
}

// goldenRequests are requests whose fingerprints must never change.
var goldenRequests = []struct {
	media, query, body string
	header             http.Header
}{
	{"", "", "", nil},
	{"text/plain; charset=utf-8", "q=1&q=2", "hello", nil},
	{"Application/JSON", "", `{"b": [1e1, -0.0, 1.50, 9007199254740993], "a": "é\u00e9\/\ud83d\ude00"}`, nil},
	{"application/merge-patch+json", "", `{"é":1,"e":2,"\u0000":{"z":null,"a":true}}`, nil},
	{"multipart/form-data; boundary=x", "", goldenForm, nil},
	{"application/json", "", "{}", http.Header{"Content-Encoding": {"gzip"}, "X-Http-Method-Override": {"PUT"}, "Stripe-Account": {"a", "b"}}},
}

const goldenForm = "--x\r\nContent-Disposition: form-data; name=n\r\n\r\n1\r\n" +
	"--x\r\nContent-Disposition: form-data; name=n\r\n\r\n2\r\n--x--\r\n"

var fingerprintFuncs = []struct {
	name string
	f    idempotency.FingerprintFunc
}{
	{"raw", idempotency.FingerprintRaw}, {"json", fingerprint.JSON}, {"multipart", fingerprint.Multipart},
}

// formatNames returns everything that identifies an operation: its ID, its name in Redis, and keys and fingerprints
// of requests. The store has no version for these, so the library would forget all records if one of
// them changed.
func formatNames(t *testing.T) string {
	var b strings.Builder
	server, client := testservice.NewMiniredis(t)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	sealed := testservice.MustSeal(t, idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "sealed:"}), testservice.Sealing("2026"))
	for _, key := range goldenKeys {
		fmt.Fprintf(&b, "key %q %q %q\n operation %v\n", key.User, key.Endpoint, key.ID, key.OperationID())
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
		key, _ := captureBegin(t, httptest.NewRequest(method, target, nil), nil)
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
			_, fp := captureBegin(t, r, row.f)
			fmt.Fprintf(&b, " %s %s\n", row.name, fp)
		}
	}
	return b.String()
}

// captureBegin returns the key and the fingerprint that a middleware passes to Begin for the request r.
func captureBegin(t *testing.T, r *http.Request, f idempotency.FingerprintFunc) (key idempotency.Key, fp idempotency.Fingerprint) {
	t.Helper()
	store := captureStore{testservice.NewSpyStore(), &key, &fp}
	opts := idempotency.Options{Fingerprint: f, FingerprintHeaders: []string{"Stripe-Account"}}
	r.Header.Set("Idempotency-Key", "k")
	testservice.Setup{Store: store, Opts: opts}.Guard(t, testservice.Echo).Handler.ServeHTTP(httptest.NewRecorder(), r)
	return key, fp
}

// captureStore stores the arguments of Begin in key and fp.
type captureStore struct {
	idempotency.Store
	key *idempotency.Key
	fp  *idempotency.Fingerprint
}

func (s captureStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	*s.key, *s.fp = key, request.Fingerprint
	return s.Store.Begin(ctx, key, request)
}

// Names and fingerprints are the same in every version, because an old and a new version share a store during a
// deployment.
func TestGoldenNames(t *testing.T) {
	t.Parallel()
	golden.RequireFile(t, filepath.Join("testdata", "names", goldenVersion+".txt"), formatNames(t))
}
