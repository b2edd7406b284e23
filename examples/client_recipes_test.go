package examples_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/google/uuid"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client"
	"github.com/idempotency-go/idempotency/examples/client/recipes"
)

// sendFunc sends an order, and returns the status of the answer. If key is empty, the client makes a key.
type sendFunc func(ctx context.Context, key, order string) (int, error)

// listRecipes returns the recipes by name. Each recipe returns a new client for the service at url, as a new process does.
func listRecipes(url string) map[string]func() sendFunc {
	newTransport := func() *client.Transport {
		return &client.Transport{
			Hosts: []string{"127.0.0.1"}, MinDelay: time.Millisecond, MaxRetryAfter: 10 * time.Millisecond,
			Base: &http.Transport{DisableKeepAlives: true}, // so that the transport does not repeat requests by itself
		}
	}
	withKey := func(ctx context.Context, key string) context.Context {
		if key == "" {
			return ctx
		}
		return client.WithKey(ctx, key)
	}
	return map[string]func() sendFunc{
		"resty": func() sendFunc {
			resty := recipes.Resty(newTransport())
			return func(ctx context.Context, key, order string) (int, error) {
				resp, err := resty.R().SetContext(withKey(ctx, key)).SetBody(order).Post(url + "/payments")
				return resp.StatusCode(), err
			}
		},
		"go-retryablehttp": func() sendFunc {
			retryable := recipes.Retryable(newTransport())
			retryable.Logger = nil
			return func(ctx context.Context, key, order string) (int, error) {
				req, err := retryablehttp.NewRequestWithContext(withKey(ctx, key), http.MethodPost, url+"/payments", []byte(order))
				if err != nil {
					return 0, err
				}
				return readStatus(retryable.Do(req))
			}
		},
		"SDK": func() sendFunc { return sendBySDK(url, recipes.SDK(newTransport())...) },
		"SDK as it is": func() sendFunc {
			pay := sendBySDK(url, option.WithHTTPClient(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}))
			return func(ctx context.Context, key, order string) (int, error) {
				if key == "" { // the SDK makes no keys, because the API of this SDK takes none
					key = "stainless-go-" + uuid.NewString()
				}
				return pay(ctx, key, order)
			}
		},
	}
}

// sendBySDK returns a function that sends orders to url with the SDK.
func sendBySDK(url string, opts ...option.RequestOption) sendFunc {
	sdk := anthropic.NewClient(append(opts, option.WithBaseURL(url), option.WithAPIKey("none"))...)
	return func(ctx context.Context, key, order string) (int, error) {
		var call []option.RequestOption
		if key != "" {
			call = append(call, option.WithHeader("Idempotency-Key", key))
		}
		var resp *http.Response
		err := sdk.Post(ctx, "payments", []byte(order), &resp, call...)
		if refusal, ok := errors.AsType[*anthropic.Error](err); ok {
			return refusal.StatusCode, nil
		}
		return readStatus(resp, err)
	}
}

// readStatus closes the body of resp, and returns the status.
func readStatus(resp *http.Response, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// countingService counts requests and charges, and makes requests meet with faults.
type countingService struct {
	guardedHandler http.Handler
	intercept      func(w http.ResponseWriter, r *http.Request, n int) // in place of the guarded handler
	busyAnswers    atomic.Int32                                        // the number of next runs in which the handler answers 503
	handlerStarted chan struct{}                                       // unless nil, closed when the handler has begun
	handlerMayEnd  chan struct{}                                       // closed to let the handler go on

	mu           sync.Mutex
	receivedKeys []string // the keys of all requests
	chargeCount  int
}

func newCountingService(t *testing.T) (*countingService, string) {
	t.Helper()
	s := new(countingService)
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Required: true, ErrorHandler: recipes.TellSDKs})
	require.NoError(t, err)
	s.guardedHandler = idem.Handler(http.HandlerFunc(s.handleCharge))
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server.URL
}

func (s *countingService) handleCharge(w http.ResponseWriter, _ *http.Request) {
	if s.busyAnswers.Add(-1) >= 0 {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	if s.handlerStarted != nil {
		close(s.handlerStarted)
		<-s.handlerMayEnd
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chargeCount++
	w.WriteHeader(http.StatusCreated)
}

func (s *countingService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.receivedKeys = append(s.receivedKeys, r.Header.Get("Idempotency-Key"))
	n := len(s.receivedKeys)
	s.mu.Unlock()
	if s.intercept == nil {
		s.guardedHandler.ServeHTTP(w, r)
		return
	}
	s.intercept(w, r, n)
}

// requireCounts compares the numbers of charges, requests and different keys.
func (s *countingService) requireCounts(t *testing.T, charges, requests, keys int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Equal(t, charges, s.chargeCount, "charges")
	require.Len(t, s.receivedKeys, requests)
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(s.receivedKeys))), keys, "keys")
}

// faults are the faults that each recipe must survive. The function start returns a client as a new process has.
var faults = map[string]func(t *testing.T, s *countingService, start func() sendFunc){
	"the answer gets lost": func(t *testing.T, s *countingService, start func() sendFunc) {
		s.intercept = func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 1 {
				s.guardedHandler.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			s.guardedHandler.ServeHTTP(w, r)
		}
		start().requireStatus(t, http.StatusCreated, "", "4200")
		s.requireCounts(t, 1, 2, 1)
	},
	"the service is busy": func(t *testing.T, s *countingService, start func() sendFunc) {
		s.busyAnswers.Store(1)
		start().requireStatus(t, http.StatusCreated, "", "4200")
		s.requireCounts(t, 1, 2, 1)
	},
	"the answer stalls": func(t *testing.T, s *countingService, start func() sendFunc) {
		s.intercept = func(w http.ResponseWriter, r *http.Request, n int) {
			if n > 1 {
				s.guardedHandler.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Retry-After", "2592000")
			w.Header().Set("Content-Type", "application/problem+json")
			stallAnswer(w, r)
		}
		start().requireStatus(t, http.StatusCreated, "", "4200")
		s.requireCounts(t, 1, 2, 1)
	},
	"a malformed Retry-After": retryAfterFault("soon"),
	"a negative Retry-After":  retryAfterFault("-5"),
	"a long Retry-After":      retryAfterFault("2592000"),
	"an endless Retry-After":  retryAfterFault("99999999999999999999"),
	"in progress": func(t *testing.T, s *countingService, start func() sendFunc) {
		first := make(chan struct{})
		s.handlerStarted, s.handlerMayEnd = make(chan struct{}), make(chan struct{})
		s.intercept = func(w http.ResponseWriter, r *http.Request, n int) {
			s.guardedHandler.ServeHTTP(w, r)
			if n == 2 {
				close(s.handlerMayEnd)
				<-first
			}
		}
		go func() {
			defer close(first)
			_, err := start()(t.Context(), "order-1", "4200")
			assert.NoError(t, err)
		}()
		<-s.handlerStarted
		start().requireStatus(t, http.StatusCreated, "order-1", "4200")
		s.requireCounts(t, 1, 3, 1)
	},
	"the key is used again": func(t *testing.T, s *countingService, start func() sendFunc) {
		pay := start()
		pay.requireStatus(t, http.StatusCreated, "order-1", "4200")
		pay.requireStatus(t, http.StatusConflict, "order-1", "9900")
		s.requireCounts(t, 1, 2, 1)
	},
	"never to be repeated": func(t *testing.T, s *countingService, start func() sendFunc) {
		s.intercept = func(w http.ResponseWriter, r *http.Request, _ int) {
			_, _ = io.Copy(io.Discard, r.Body) // so that the middleware cannot read the body, and answers 500
			s.guardedHandler.ServeHTTP(w, r)
		}
		start().requireStatus(t, http.StatusInternalServerError, "", "4200")
		s.requireCounts(t, 0, 1, 1)
	},
	"the next operation": func(t *testing.T, s *countingService, start func() sendFunc) {
		pay := start()
		pay.requireStatus(t, http.StatusCreated, "", "4200")
		pay.requireStatus(t, http.StatusCreated, "", "4200")
		s.requireCounts(t, 2, 2, 2)
	},
	"the process dies": func(t *testing.T, s *countingService, start func() sendFunc) {
		ctx, die := context.WithCancel(t.Context())
		s.intercept = func(w http.ResponseWriter, r *http.Request, n int) {
			s.guardedHandler.ServeHTTP(w, r)
			if n == 1 {
				die()
				panic(http.ErrAbortHandler)
			}
		}
		_, err := start()(ctx, "order-1", "4200")
		require.ErrorIs(t, err, context.Canceled)
		start().requireStatus(t, http.StatusCreated, "order-1", "4200")
		s.requireCounts(t, 1, 2, 1)
	},
}

// retryAfterFault returns a fault in which the first answer has an invalid or far too long Retry-After.
func retryAfterFault(retryAfter string) func(t *testing.T, s *countingService, start func() sendFunc) {
	return func(t *testing.T, s *countingService, start func() sendFunc) {
		s.intercept = func(w http.ResponseWriter, r *http.Request, n int) {
			if n > 1 {
				s.guardedHandler.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Retry-After", retryAfter)
			w.WriteHeader(http.StatusConflict)
		}
		start().requireStatus(t, http.StatusCreated, "", "4200")
		s.requireCounts(t, 1, 2, 1)
	}
}

// requireStatus sends an order, and requires the status want.
func (pay sendFunc) requireStatus(t *testing.T, want int, key, order string) {
	t.Helper()
	got, err := pay(t.Context(), key, order)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// With each recipe and each fault, an operation has one key, and takes effect once.
func TestClientRecipes(t *testing.T) {
	t.Parallel()
	for name, runFault := range faults {
		for recipe := range listRecipes("") {
			t.Run(recipe+", "+name, func(t *testing.T) {
				t.Parallel()
				service, url := newCountingService(t)
				runFault(t, service, listRecipes(url)[recipe])
			})
		}
	}
}
