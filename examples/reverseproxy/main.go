// Reverseproxy is a gateway that guards a service which knows nothing of keys. When the service does not answer, the
// gateway says what that means: a connection that was never made has done nothing, so the client may try again. A
// connection that broke may have charged the card, so nobody tries again. It ends with the line
//
//	orders: 2, requests to the gateway: 4, requests to the service: 2, charges: 2
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

const lease = time.Second

func main() {
	dir, err := os.MkdirTemp("", "reverseproxy")
	demo.Check(err)
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "service.sock")

	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
		Required: true, Abandoned: idempotency.Refuse, Lease: lease,
	})
	demo.Check(err)
	gateway := httptest.NewServer(idem.Handler(newProxy(socket)))
	defer gateway.Close()
	client := client{url: gateway.URL + "/charges"}

	down := client.send("order-1", "4200", "the service is down")
	service := start(socket)
	defer service.server.Close()
	up := client.send("order-1", "4200", "the service is up")
	dropped := client.send("order-2", "1300", "the service charges, and drops the connection")
	time.Sleep(lease + lease/2) // until then a retry is told that the order is in progress, as after a crash
	unknown := client.send("order-2", "1300", "nobody knows what came of it")

	verdict := fmt.Sprintf("orders: 2, requests to the gateway: %d, requests to the service: %d, charges: %d",
		client.requests, service.requests.Load(), service.charges.Load())
	fmt.Println(verdict)
	switch {
	case down != "502 upstream not reached" || up != "201 charge 1":
		log.Fatal("this is broken: what was never sent may be tried again")
	case dropped != "502 upstream broke off" || unknown != "409 Outcome of the earlier attempt is unknown":
		log.Fatal("this is broken: what may have been charged is not tried again")
	case verdict != "orders: 2, requests to the gateway: 4, requests to the service: 2, charges: 2":
		log.Fatal("this is broken")
	}
}

// newProxy returns a proxy to the service that listens on a socket.
func newProxy(socket string) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "service"})
			// The service does not know the header, but net/http does: it sends a request with a key and without a
			// body again if the connection breaks.
			r.Out.Header.Del("Idempotency-Key")
		},
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}},
		ErrorHandler: failed,
	}
}

// failed answers when the service did not.
func failed(w http.ResponseWriter, r *http.Request, err error) {
	if failure, ok := errors.AsType[*net.OpError](err); ok && failure.Op == "dial" {
		idempotency.Decide(r.Context(), idempotency.Free) // nothing was sent: a retry is safe
		http.Error(w, "upstream not reached", http.StatusBadGateway)
		return
	}
	idempotency.Decide(r.Context(), idempotency.Unknown) // Options.Abandoned decides about a retry
	http.Error(w, "upstream broke off", http.StatusBadGateway)
}

// service charges a card for each request. It does not live to tell of the second charge.
type service struct {
	server            *http.Server
	requests, charges atomic.Int64
}

func start(socket string) *service {
	listener, err := net.Listen("unix", socket)
	demo.Check(err)
	s := new(service)
	s.server = &http.Server{Handler: s}
	go s.server.Serve(listener)
	return s
}

func (s *service) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.requests.Add(1)
	n := s.charges.Add(1)
	if n == 2 {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "charge %d", n)
}

// client sends requests to the gateway.
type client struct {
	url      string
	requests int
}

// send sends a request with a key, and prints and returns what came of it.
func (c *client) send(key, amount, what string) string {
	c.requests++
	req, err := http.NewRequest("POST", c.url, strings.NewReader(amount))
	demo.Check(err)
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	demo.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	demo.Check(err)
	answer := fmt.Sprintf("%d %s", resp.StatusCode, strings.TrimSpace(string(body)))
	var problem struct{ Title string }
	if json.Unmarshal(body, &problem) == nil {
		answer = fmt.Sprintf("%d %s", resp.StatusCode, problem.Title)
	}
	fmt.Printf("%s, %s:\n  %s\n", key, what, answer)
	return answer
}
