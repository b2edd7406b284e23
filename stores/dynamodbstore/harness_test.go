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
		executeUntilKilled(url)
		return
	}
	goleak.VerifyTestMain(m)
}

// testOptions are for tests whose processes share a clock.
var testOptions = dynamodbstore.Options{Skew: time.Millisecond}

const tableName = "idempotency_records"

// service is an emulated service. Its client needs no network, and gets no Date.
type service struct {
	client   *dynamodb.Client
	emulator http.Handler

	mu         sync.Mutex
	faults     map[string][]fault // by name of the call; each fault is for one request
	replies    map[string]any     // fixed replies by name of the call, instead of the emulator
	dateHeader func() string      // nil: the Date of the HTTP server, if any
	calls      []string
}

// fault answers a request instead of the service, and may call the service first.
type fault func(w http.ResponseWriter, r *http.Request, service http.Handler)

// newService returns a service with a table.
func newService(t testing.TB) *service {
	t.Helper()
	s := &service{
		emulator: servertest.DynamoDBHandler(server.NewServer()), faults: make(map[string][]fault),
		replies: map[string]any{
			"UpdateTimeToLive": struct{}{},
			"DescribeTimeToLive": map[string]any{
				"TimeToLiveDescription": map[string]string{"AttributeName": "remove_at", "TimeToLiveStatus": "ENABLED"},
			},
		},
	}
	s.client = newClient("http://service.invalid", s)
	require.NoError(t, dynamodbstore.CreateTable(context.Background(), s.client, testOptions))
	s.takeCalls()
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

// startServer serves the service over HTTP, and returns the URL.
func (s *service) startServer(t testing.TB) string {
	t.Helper()
	listening := httptest.NewServer(s)
	t.Cleanup(listening.Close)
	return listening.URL
}

// newHTTPClient returns a client that reaches the service over HTTP.
func (s *service) newHTTPClient(t testing.TB) *dynamodb.Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return newClient(s.startServer(t), transport)
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
	injected, date := s.noteCall(name)
	if date != "" {
		w.Header().Set("Date", date)
	}
	if injected != nil {
		injected(w, r, http.HandlerFunc(s.handleRequest))
		return
	}
	s.handleRequest(w, r)
}

// noteCall notes a call, and returns the fault and the Date for the call.
func (s *service) noteCall(name string) (injected fault, date string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, name)
	if s.dateHeader != nil {
		date = s.dateHeader()
	}
	if waiting := s.faults[name]; len(waiting) > 0 {
		injected, s.faults[name] = waiting[0], waiting[1:]
	}
	return injected, date
}

// takeCalls returns the calls since the last takeCalls.
func (s *service) takeCalls() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := strings.Join(s.calls, " ")
	s.calls = nil
	return all
}

// injectFaults makes the next calls of that name fail.
func (s *service) injectFaults(name string, faults ...fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[name] = append(s.faults[name], faults...)
}

// setReply sets the reply to all calls of that name.
func (s *service) setReply(name string, with any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replies[name] = with
}

// attributes are the attributes of an item in JSON.
type attributes map[string]map[string]any

// handleRequest replies like the service, by means of the emulator. handleRequest handles one request at a time.
func (s *service) handleRequest(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	_, name, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	if answer, ok := s.replies[name]; ok {
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	var body bytes.Buffer
	_, _ = body.ReadFrom(r.Body)
	reply := s.callEmulator(name, body.Bytes())
	w.WriteHeader(reply.Code)
	_, _ = w.Write(reply.Body.Bytes())
}

// callEmulator sends a request to the emulator.
func (s *service) callEmulator(name string, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	r.Header.Set("X-Amz-Target", "DynamoDB_20120810."+name)
	w := httptest.NewRecorder()
	s.emulator.ServeHTTP(w, r)
	return w
}

// requestedItem returns the item with the key in the request.
func (s *service) requestedItem(request []byte) attributes {
	var parsed struct{ Key attributes }
	_ = json.Unmarshal(request, &parsed)
	get, _ := json.Marshal(map[string]any{"TableName": tableName, "Key": parsed.Key})
	var got struct{ Item attributes }
	_ = json.Unmarshal(s.callEmulator("GetItem", get).Body.Bytes(), &got)
	return got.Item
}

func (s *service) putItem(item attributes) {
	body, _ := json.Marshal(map[string]any{"TableName": tableName, "Item": item})
	s.callEmulator("PutItem", body)
}

// itemRequest returns a request with the key of an item.
func itemRequest(id string) []byte {
	body, _ := json.Marshal(map[string]any{"Key": map[string]any{"operation": map[string]any{"S": keyOf(id).OperationID()}}})
	return body
}

// readItem returns the item of a key, or nil.
func (s *service) readItem(id string) attributes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requestedItem(itemRequest(id))
}

// setAttribute sets an attribute of a stored record, or removes the attribute if value is nil.
func (s *service) setAttribute(id, name string, value map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	item := s.requestedItem(itemRequest(id))
	item[name] = value
	if value == nil {
		delete(item, name)
	}
	s.putItem(item)
}

// deleteItem deletes a stored record.
func (s *service) deleteItem(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parsed map[string]any
	_ = json.Unmarshal(itemRequest(id), &parsed)
	parsed["TableName"] = tableName
	body, _ := json.Marshal(parsed)
	s.callEmulator("DeleteItem", body)
}

// newStore returns a store with its own table.
func newStore(t testing.TB) (*dynamodbstore.Store, *service) {
	t.Helper()
	s := newService(t)
	return dynamodbstore.New(s.client, testOptions), s
}

// The stores in databases share these helpers.
var (
	keyOf       = rowtest.KeyOf
	request     = rowtest.Request
	answer      = rowtest.Answer
	claimKey    = rowtest.MustBegin
	completeKey = rowtest.MustComplete
)

// requireReplay requires that a request with the key gets the stored answer want.
func requireReplay(t testing.TB, store idempotency.Store, id string, want idempotency.Response) {
	t.Helper()
	require.Equal(t, want, rowtest.MustReadResponse(t, store, id))
}

// claimAndLapse claims a key, and returns when the lease has lapsed.
func claimAndLapse(t testing.TB, store *dynamodbstore.Store, id string) idempotency.Claim {
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
