package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// shop is the service that is killed.
type shop struct {
	pool     *pgxpool.Pool
	provider string
}

func newShop(ctx context.Context) *shop {
	return &shop{database.Connect(ctx), os.Getenv("PROVIDER_URL")}
}

func (s *shop) serve() {
	idem, err := idempotency.New(pgxstore.New(s.pool, pgxstore.Options{}), idempotency.SingleUser, idempotency.Options{
		Required: true,
		Lease:    2 * time.Second,  // how long a payment is blocked if its process dies; the default is more patient
		Wait:     10 * time.Second, // for the lease of a process that has died
	})
	demo.Check(err)
	process.Serve(idem.Handler(s))
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op, _ := idempotency.FromContext(r.Context())
	receipt, err := s.charge(r.Context(), op.DownstreamKey("charge"), r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway) // not stored: the client may try again
		return
	}
	// The ID is the same for all attempts. An earlier one may have come further than this: then nothing happens.
	_, err = s.pool.Exec(r.Context(),
		"INSERT INTO payments (operation, receipt) VALUES ($1, $2) ON CONFLICT DO NOTHING", op.ID, receipt)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "paid by ", receipt)
}

// charge asks the provider for a charge. The key says which one, for as long as the provider remembers it.
func (s *shop) charge(ctx context.Context, key string, amount io.Reader) (receipt string, err error) {
	body, err := io.ReadAll(amount)
	if err != nil {
		return "", err
	}
	ctx = idempotency.WithKey(ctx, key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.provider+"/charges", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &idempotency.Transport{Hosts: []string{"127.0.0.1"}}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("provider: %s", resp.Status)
	}
	answer, err := io.ReadAll(resp.Body)
	return string(answer), err
}
