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

// send pays with a key, or with one that is made if it is empty. It returns the status of the answer.
type send func(ctx context.Context, key, order string) (int, error)

// recipesOf returns each recipe, as a process has it that has just begun.
func recipesOf(url string) map[string]func() send {
	transport := func() *client.Transport {
		return &client.Transport{
			Hosts: []string{"127.0.0.1"}, MinDelay: time.Millisecond, MaxRetryAfter: 10 * time.Millisecond,
			Base: &http.Transport{DisableKeepAlives: true}, // so that it does not send again by itself
		}
	}
	with := func(ctx context.Context, key string) context.Context {
		if key == "" {
			return ctx
		}
		return client.WithKey(ctx, key)
	}
	return map[string]func() send{
		"resty": func() send {
			resty := recipes.Resty(transport())
			return func(ctx context.Context, key, order string) (int, error) {
				resp, err := resty.R().SetContext(with(ctx, key)).SetBody(order).Post(url + "/payments")
				return resp.StatusCode(), err
			}
		},
		"go-retryablehttp": func() send {
			retryable := recipes.Retryable(transport())
			retryable.Logger = nil
			return func(ctx context.Context, key, order string) (int, error) {
				req, err := retryablehttp.NewRequestWithContext(with(ctx, key), http.MethodPost, url+"/payments", []byte(order))
				if err != nil {
					return 0, err
				}
				return status(retryable.Do(req))
			}
		},
		"SDK": func() send { return bySDK(url, recipes.SDK(transport())...) },
		"SDK as it is": func() send {
			pay := bySDK(url, option.WithHTTPClient(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}))
			return func(ctx context.Context, key, order string) (int, error) {
				if key == "" { // this one does not make keys: its API takes none
					key = "stainless-go-" + uuid.NewString()
				}
				return pay(ctx, key, order)
			}
		},
	}
}

func bySDK(url string, opts ...option.RequestOption) send {
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
		return status(resp, err)
	}
}

func status(resp *http.Response, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// till is a service that counts, and whose requests meet with accidents.
type till struct {
	guarded http.Handler
	meet    func(w http.ResponseWriter, r *http.Request, n int) // in place of the guarded handler
	busy    atomic.Int32                                        // how often the handler answers 503
	working chan struct{}                                       // if not nil, closed when the handler has begun
	finish  chan struct{}                                       // closed to let it go on

	mu      sync.Mutex
	keys    []string // of the requests
	charges int
}

func newTill(t *testing.T) (*till, string) {
	t.Helper()
	s := new(till)
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Required: true, ErrorHandler: recipes.TellSDKs})
	require.NoError(t, err)
	s.guarded = idem.Handler(http.HandlerFunc(s.charge))
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server.URL
}

func (s *till) charge(w http.ResponseWriter, _ *http.Request) {
	if s.busy.Add(-1) >= 0 {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	if s.working != nil {
		close(s.working)
		<-s.finish
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.charges++
	w.WriteHeader(http.StatusCreated)
}

func (s *till) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
	n := len(s.keys)
	s.mu.Unlock()
	if s.meet == nil {
		s.guarded.ServeHTTP(w, r)
		return
	}
	s.meet(w, r, n)
}

// requirePaid compares how many charges, requests and different keys there were.
func (s *till) requirePaid(t *testing.T, charges, requests, keys int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Equal(t, charges, s.charges, "charges")
	require.Len(t, s.keys, requests)
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(s.keys))), keys, "keys")
}

// accidents are what each recipe must survive. A recipe is started as a process is.
var accidents = map[string]func(t *testing.T, s *till, start func() send){
	"the answer gets lost": func(t *testing.T, s *till, start func() send) {
		s.meet = func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 1 {
				s.guarded.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			s.guarded.ServeHTTP(w, r)
		}
		start().require(t, http.StatusCreated, "", "4200")
		s.requirePaid(t, 1, 2, 1)
	},
	"the service is busy": func(t *testing.T, s *till, start func() send) {
		s.busy.Store(1)
		start().require(t, http.StatusCreated, "", "4200")
		s.requirePaid(t, 1, 2, 1)
	},
	"the answer stalls": func(t *testing.T, s *till, start func() send) {
		s.meet = func(w http.ResponseWriter, r *http.Request, n int) {
			if n > 1 {
				s.guarded.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Retry-After", "2592000")
			w.Header().Set("Content-Type", "application/problem+json")
			stalling(w, r)
		}
		start().require(t, http.StatusCreated, "", "4200")
		s.requirePaid(t, 1, 2, 1)
	},
	"a malformed Retry-After": asked("soon"),
	"a negative Retry-After":  asked("-5"),
	"a long Retry-After":      asked("2592000"),
	"an endless Retry-After":  asked("99999999999999999999"),
	"in progress": func(t *testing.T, s *till, start func() send) {
		first := make(chan struct{})
		s.working, s.finish = make(chan struct{}), make(chan struct{})
		s.meet = func(w http.ResponseWriter, r *http.Request, n int) {
			s.guarded.ServeHTTP(w, r)
			if n == 2 {
				close(s.finish)
				<-first
			}
		}
		go func() {
			defer close(first)
			_, err := start()(t.Context(), "order-1", "4200")
			assert.NoError(t, err)
		}()
		<-s.working
		start().require(t, http.StatusCreated, "order-1", "4200")
		s.requirePaid(t, 1, 3, 1)
	},
	"the key is used again": func(t *testing.T, s *till, start func() send) {
		pay := start()
		pay.require(t, http.StatusCreated, "order-1", "4200")
		pay.require(t, http.StatusConflict, "order-1", "9900")
		s.requirePaid(t, 1, 2, 1)
	},
	"never to be repeated": func(t *testing.T, s *till, start func() send) {
		s.meet = func(w http.ResponseWriter, r *http.Request, _ int) {
			_, _ = io.Copy(io.Discard, r.Body) // a fault of the server
			s.guarded.ServeHTTP(w, r)
		}
		start().require(t, http.StatusInternalServerError, "", "4200")
		s.requirePaid(t, 0, 1, 1)
	},
	"the next operation": func(t *testing.T, s *till, start func() send) {
		pay := start()
		pay.require(t, http.StatusCreated, "", "4200")
		pay.require(t, http.StatusCreated, "", "4200")
		s.requirePaid(t, 2, 2, 2)
	},
	"the process dies": func(t *testing.T, s *till, start func() send) {
		ctx, die := context.WithCancel(t.Context())
		s.meet = func(w http.ResponseWriter, r *http.Request, n int) {
			s.guarded.ServeHTTP(w, r)
			if n == 1 {
				die()
				panic(http.ErrAbortHandler)
			}
		}
		_, err := start()(ctx, "order-1", "4200")
		require.ErrorIs(t, err, context.Canceled)
		start().require(t, http.StatusCreated, "order-1", "4200")
		s.requirePaid(t, 1, 2, 1)
	},
}

// asked is an accident: the service asks the client to wait in a way that makes no sense, or for far too long.
func asked(retryAfter string) func(t *testing.T, s *till, start func() send) {
	return func(t *testing.T, s *till, start func() send) {
		s.meet = func(w http.ResponseWriter, r *http.Request, n int) {
			if n > 1 {
				s.guarded.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Retry-After", retryAfter)
			w.WriteHeader(http.StatusConflict)
		}
		start().require(t, http.StatusCreated, "", "4200")
		s.requirePaid(t, 1, 2, 1)
	}
}

func (pay send) require(t *testing.T, want int, key, order string) {
	t.Helper()
	got, err := pay(t.Context(), key, order)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// With each recipe, an operation has one key, and takes effect once.
func TestClientRecipes(t *testing.T) {
	t.Parallel()
	for name, happen := range accidents {
		for recipe := range recipesOf("") {
			t.Run(recipe+", "+name, func(t *testing.T) {
				t.Parallel()
				service, url := newTill(t)
				happen(t, service, recipesOf(url)[recipe])
			})
		}
	}
}
