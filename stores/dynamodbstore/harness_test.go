package dynamodbstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/stretchr/testify/require"
	"github.com/truora/minidyn/server"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(mortalURL); url != "" {
		live(url)
		return
	}
	goleak.VerifyTestMain(m)
}

// local are the options of tests, whose processes share a clock.
var local = dynamodbstore.Options{Skew: time.Millisecond}

const records = "idempotency_records"

// service is an emulated service. Its client reaches it without a network, and gets no Date.
type service struct {
	client   *dynamodb.Client
	emulator http.Handler

	mu       sync.Mutex
	faults   map[string][]fault // by the name of the call, in turn
	answers  map[string]any     // likewise, in the place of the emulator
	tellsOld bool               // the item whose condition failed
	date     func() string      // nil: as the server has it
	calls    []string
}

// fault answers a request in the place of the service. It may let the service work first.
type fault func(w http.ResponseWriter, r *http.Request, service http.Handler)

// newService returns a service with a table.
func newService(t testing.TB) *service {
	t.Helper()
	s := &service{
		emulator: servertest.DynamoDBHandler(server.NewServer()), tellsOld: true, faults: make(map[string][]fault),
		answers: map[string]any{
			"UpdateTimeToLive": struct{}{},
			"DescribeTimeToLive": map[string]any{
				"TimeToLiveDescription": map[string]string{"AttributeName": "remove_at", "TimeToLiveStatus": "ENABLED"},
			},
		},
	}
	s.client = newClient("http://service.invalid", s)
	require.NoError(t, dynamodbstore.CreateTable(context.Background(), s.client, local))
	s.taken()
	return s
}

func newClient(url string, transport http.RoundTripper) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(url), HTTPClient: &http.Client{Transport: transport},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	})
}

// serve has the service listen, and returns its URL.
func (s *service) serve(t testing.TB) string {
	t.Helper()
	listening := httptest.NewServer(s)
	t.Cleanup(listening.Close)
	return listening.URL
}

// listen returns a client that reaches the service over HTTP.
func (s *service) listen(t testing.TB) *dynamodb.Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return newClient(s.serve(t), transport)
}

// RoundTrip implements [http.RoundTripper].
func (s *service) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result(), nil
}

// ServeHTTP implements [http.Handler].
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, name, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	struck, date := s.called(name)
	if date != "" {
		w.Header().Set("Date", date)
	}
	if struck != nil {
		struck(w, r, http.HandlerFunc(s.work))
		return
	}
	s.work(w, r)
}

// called notes a call, and returns what becomes of it.
func (s *service) called(name string) (struck fault, date string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, name)
	if s.date != nil {
		date = s.date()
	}
	if waiting := s.faults[name]; len(waiting) > 0 {
		struck, s.faults[name] = waiting[0], waiting[1:]
	}
	return struck, date
}

// taken returns the calls since it was asked last.
func (s *service) taken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := strings.Join(s.calls, " ")
	s.calls = nil
	return all
}

// inject has the next requests of a name fail.
func (s *service) inject(name string, faults ...fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[name] = append(s.faults[name], faults...)
}

// answer has all requests of a name answered so.
func (s *service) answer(name string, with any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[name] = with
}

// attributes are those of an item, as they are sent.
type attributes map[string]map[string]any

// work does what the service does, by the emulator. It does one thing at a time.
func (s *service) work(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	_, name, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	if answer, ok := s.answers[name]; ok {
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	var body bytes.Buffer
	_, _ = body.ReadFrom(r.Body)
	reply := s.emulate(name, body.Bytes())
	told := reply.Body.Bytes()
	if !s.tellsOld && reply.Code != http.StatusOK {
		var failed map[string]any
		_ = json.Unmarshal(told, &failed)
		delete(failed, "Item")
		told, _ = json.Marshal(failed)
	}
	w.WriteHeader(reply.Code)
	_, _ = w.Write(told)
}

// emulate asks the emulator.
func (s *service) emulate(name string, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	r.Header.Set("X-Amz-Target", "DynamoDB_20120810."+name)
	w := httptest.NewRecorder()
	s.emulator.ServeHTTP(w, r)
	return w
}

// stored returns the item with the key that a request names.
func (s *service) stored(request []byte) attributes {
	var asked struct{ Key attributes }
	_ = json.Unmarshal(request, &asked)
	get, _ := json.Marshal(map[string]any{"TableName": records, "Key": asked.Key})
	var got struct{ Item attributes }
	_ = json.Unmarshal(s.emulate("GetItem", get).Body.Bytes(), &got)
	return got.Item
}

func (s *service) put(item attributes) {
	body, _ := json.Marshal(map[string]any{"TableName": records, "Item": item})
	s.emulate("PutItem", body)
}

// keyRequest names the item of a key.
func keyRequest(id string) []byte {
	digest := keyOf(id).Digest()
	body, _ := json.Marshal(map[string]any{"Key": map[string]any{"digest": map[string]any{"B": digest[:]}}})
	return body
}

// item returns the item of a key, or nil.
func (s *service) item(id string) attributes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored(keyRequest(id))
}

// tamper sets an attribute of a record behind the back of the store, or removes it.
func (s *service) tamper(id, name string, value map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	item := s.stored(keyRequest(id))
	item[name] = value
	if value == nil {
		delete(item, name)
	}
	s.put(item)
}

// forget removes a record behind the back of the store.
func (s *service) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var asked map[string]any
	_ = json.Unmarshal(keyRequest(id), &asked)
	asked["TableName"] = records
	body, _ := json.Marshal(asked)
	s.emulate("DeleteItem", body)
}

// newStore returns a store on a table of its own.
func newStore(t testing.TB) (*dynamodbstore.Store, *service) {
	t.Helper()
	s := newService(t)
	return dynamodbstore.New(s.client, local), s
}

// What the stores in databases have in common.
var (
	keyOf     = rowtest.KeyOf
	request   = rowtest.Request
	answer    = rowtest.Answer
	begun     = rowtest.Begun
	completed = rowtest.Completed
)

// requireReplay asks for a key whose answer is stored.
func requireReplay(t testing.TB, store idempotency.Store, id string, want idempotency.Response) {
	t.Helper()
	require.Equal(t, want, rowtest.Stored(t, store, id))
}

// lapsed claims a key for a lease that is over when it returns.
func lapsed(t testing.TB, store *dynamodbstore.Store, id string) idempotency.Claim {
	t.Helper()
	short := request
	short.Lease = time.Millisecond
	_, claim, err := store.Begin(context.Background(), keyOf(id), short)
	require.NoError(t, err)
	require.NotNil(t, claim)
	require.Eventually(t, func() bool {
		entry, err := store.Inspect(context.Background(), keyOf(id))
		return err == nil && entry.State == idempotency.StateAbandoned
	}, 20*time.Second, time.Millisecond)
	return claim
}
