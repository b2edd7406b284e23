// Batch guards the items of a batch rather than the batch: each item has its own key and runs through the Runner. So a client
// may repeat, split or regroup a batch that was half done, and each item takes effect once. The answer has the outcome of each
// item. The program ends with the line
//
//	8 items sent, 4 charges
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

func main() {
	runner, err := idempotency.NewRunner(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.RunnerOptions{})
	demo.Check(err)
	service := &batches{runner: runner}
	server := httptest.NewServer(demo.Authenticate(service))
	defer server.Close()

	fmt.Println("POST /batch: the bank does not answer for c")
	service.failingKey.Store(new("c"))
	first := postBatch(server.URL+"/batch", []item{{"a", 10}, {"b", 20}, {"c", 30}})
	service.failingKey.Store(nil)
	fmt.Println("POST /batch: all of them again, a new one, and b with another amount")
	second := postBatch(server.URL+"/batch", []item{{"a", 10}, {"b", 20}, {"c", 30}, {"d", 40}, {"b", 99}})

	got := fmt.Sprint(listOutcomes(first), listOutcomes(second))
	if got != "[done done failed] [replayed replayed done done refused: key-reused]" {
		log.Fatal("this is broken: ", got)
	}
	verdict := fmt.Sprintf("%d items sent, %d charges", len(first)+len(second), service.chargeCount.Load())
	fmt.Println(verdict)
	if verdict != "8 items sent, 4 charges" {
		log.Fatal("this is broken")
	}
}

// item is a part of a batch. Each item succeeds or fails by itself.
type item struct {
	Key    string `json:"key"`
	Amount int    `json:"amount"`
}

// result is the result of an item.
type result struct {
	Key     string  `json:"key"`
	Outcome string  `json:"outcome"` // done, replayed, failed (retry with the same key), refused
	Charge  *charge `json:"charge,omitempty"`
	Detail  string  `json:"detail,omitempty"`
}

type charge struct {
	Number int `json:"number"`
	Amount int `json:"amount"`
}

// batches is the handler of POST /batch. The handler needs no middleware, because the items use the Runner.
type batches struct {
	runner      *idempotency.Runner
	chargeCount atomic.Int64
	failingKey  atomic.Pointer[string] // the bank does not answer for this key
}

func (b *batches) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, err := demo.User(r)
	var items []item
	if err == nil {
		err = json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&items)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	results := make([]result, len(items))
	for i, item := range items {
		results[i] = b.runItem(r.Context(), user, item)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusMultiStatus)
	_ = json.NewEncoder(w).Encode(results)
}

// runItem charges one item, or replays the charge of an earlier request.
func (b *batches) runItem(ctx context.Context, user string, entry item) result {
	key := idempotency.Key{User: user, Endpoint: "POST /batch", ID: entry.Key}
	payload := strconv.AppendInt(nil, int64(entry.Amount), 10)
	done, replayed, err := idempotency.DoJSON(ctx, b.runner, key, payload,
		func(context.Context) (charge, error) { return b.chargeItem(entry) })

	if refusal, ok := errors.AsType[*idempotency.Error](err); ok {
		return result{Key: entry.Key, Outcome: "refused: " + refusal.Code, Detail: refusal.Detail}
	}
	switch {
	case err != nil:
		return result{Key: entry.Key, Outcome: "failed", Detail: err.Error()}
	case replayed:
		return result{Key: entry.Key, Outcome: "replayed", Charge: &done}
	default:
		return result{Key: entry.Key, Outcome: "done", Charge: &done}
	}
}

func (b *batches) chargeItem(entry item) (charge, error) {
	if key := b.failingKey.Load(); key != nil && *key == entry.Key {
		return charge{}, errors.New("the bank does not answer")
	}
	return charge{Number: int(b.chargeCount.Add(1)), Amount: entry.Amount}, nil
}

func postBatch(url string, items []item) (results []result) {
	body, err := json.Marshal(items)
	demo.Check(err)
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	demo.Check(err)
	req.SetBasicAuth("alice", "secret")
	resp, err := http.DefaultClient.Do(req)
	demo.Check(err)
	defer resp.Body.Close()
	demo.Check(json.NewDecoder(resp.Body).Decode(&results))
	for _, r := range results {
		line, err := json.Marshal(r)
		demo.Check(err)
		fmt.Println(" ", string(line))
	}
	return results
}

func listOutcomes(results []result) (all []string) {
	for _, r := range results {
		all = append(all, r.Outcome)
	}
	return all
}
