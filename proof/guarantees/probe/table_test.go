package probe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency/stores/casstore"
)

// tableCall is a call of a [casstore.Table] over HTTP.
type tableCall struct {
	Method, Key, Version string
	Data                 []byte
}

// tableReply is the result of a tableCall.
type tableReply struct {
	Value      casstore.Value
	IsNotFound bool
	IsConflict bool
}

// tableServer is a database with compare-and-swap. Nothing expires within a test.
type tableServer struct {
	mutex  sync.Mutex
	values map[string]casstore.Value
	writes int
}

func (s *tableServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var call tableCall
	if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(s.do(call))
}

func (s *tableServer) do(call tableCall) (reply tableReply) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	value, isFound := s.values[call.Key]
	switch {
	case call.Method == "get":
		return tableReply{Value: value, IsNotFound: !isFound}
	case value.Version != call.Version: // without a value, the version is empty
		return tableReply{IsConflict: true}
	case call.Method == "delete":
		delete(s.values, call.Key)
		return tableReply{}
	}
	s.writes++
	s.values[call.Key] = casstore.Value{Data: call.Data, Version: strconv.Itoa(s.writes)}
	return tableReply{Value: s.values[call.Key]}
}

// tableClient is a [casstore.Table] on the tableServer at url.
type tableClient struct{ url string }

func (c tableClient) Get(ctx context.Context, key string) (casstore.Value, error) {
	return c.call(ctx, tableCall{Method: "get", Key: key})
}

func (c tableClient) Create(ctx context.Context, key string, data []byte, _ time.Duration) (version string, err error) {
	value, err := c.call(ctx, tableCall{Method: "put", Key: key, Data: data})
	return value.Version, err
}

func (c tableClient) Replace(
	ctx context.Context, key, version string, data []byte, _ time.Duration,
) (newVersion string, err error) {
	value, err := c.call(ctx, tableCall{Method: "put", Key: key, Version: version, Data: data})
	return value.Version, err
}

func (c tableClient) Delete(ctx context.Context, key, version string) error {
	_, err := c.call(ctx, tableCall{Method: "delete", Key: key, Version: version})
	return err
}

func (c tableClient) call(ctx context.Context, call tableCall) (casstore.Value, error) {
	body, err := json.Marshal(call)
	if err != nil {
		return casstore.Value{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return casstore.Value{}, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return casstore.Value{}, err
	}
	defer resp.Body.Close()
	var reply tableReply
	err = json.NewDecoder(resp.Body).Decode(&reply)
	switch {
	case resp.StatusCode != http.StatusOK:
		return casstore.Value{}, errors.Join(fmt.Errorf("the table answers %s", resp.Status), err)
	case err != nil:
		return casstore.Value{}, err
	case reply.IsNotFound:
		return casstore.Value{}, casstore.ErrNotFound
	case reply.IsConflict:
		return casstore.Value{}, casstore.ErrConflict
	}
	return reply.Value, nil
}
