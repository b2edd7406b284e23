// Package demo has the parts that the examples share: authentication, a handler to be guarded, and a client that sends
// retries.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync/atomic"
)

type userKey struct{}

// Authenticate stands for the authentication of a service. Mount Authenticate outside of the idempotency middleware.
func Authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, ok := r.BasicAuth()
		if !ok || password != "secret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

// User returns the name of the user whom Authenticate has admitted.
func User(r *http.Request) (string, error) {
	user, ok := r.Context().Value(userKey{}).(string)
	if !ok {
		return "", errors.New("not authenticated")
	}
	return user, nil
}

// Shop is a handler that charges a card in each run.
type Shop struct{ charges atomic.Int64 }

func (s *Shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := s.Charge()
	w.Header().Set("Location", r.URL.Path+"/"+id)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "charge %s", id)
}

// Charge charges a card, and returns the ID of the charge.
func (s *Shop) Charge() string {
	s.charges.Add(1)
	return rand.Text()
}

// Charges returns the number of charges.
func (s *Shop) Charges() int { return int(s.charges.Load()) }

// Visit serves handler while VisitServer sends requests to paths.
func (s *Shop) Visit(handler http.Handler, paths ...string) {
	listener := Listen()
	server := &http.Server{Handler: handler}
	go server.Serve(listener)
	s.VisitServer(listener.Addr(), paths...)
	Check(server.Shutdown(context.Background()))
}

// Listen returns a listener for a server.
func Listen() net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Check(err)
	return listener
}

// IsListening reports whether the server of address, a URL, accepts connections.
func IsListening(address string) bool {
	u, err := url.Parse(address)
	Check(err)
	conn, err := net.Dial("tcp", u.Host)
	return err == nil && conn.Close() == nil
}

// VisitServer sends three requests with the same key to each path, and each path must lead to the shop. The requests are a
// first request, its retry, and a request that reuses the key with another body. VisitServer ends the program if an answer is
// wrong.
func (s *Shop) VisitServer(addr net.Addr, paths ...string) {
	for _, path := range paths {
		address := "http://" + addr.String() + path
		key := rand.Text()
		fmt.Println("POST", path)
		first := sendRequest(address, key, "4200")
		first.printAnswer("first")
		retry := sendRequest(address, key, "4200")
		retry.printAnswer("retry")
		reuse := sendRequest(address, key, "9900")
		reuse.printAnswer("reuse")

		checkPromise(first.status == http.StatusCreated && !first.isReplay, "the first request is executed")
		checkPromise(retry.isReplay && retry.hasContentOf(first), "a retry gets the same answer")
		checkPromise(reuse.status == http.StatusConflict && strings.Contains(reuse.body, "key-reused"), "a reuse is refused")
	}
	checkPromise(s.charges.Load() == int64(len(paths)), "each operation is executed once")
	fmt.Printf("operations: %d, requests: %d, charges: %d\n", len(paths), 3*len(paths), s.charges.Load())
}

// answer is a response as a client sees it.
type answer struct {
	status   int
	header   http.Header // without Idempotent-Replayed and Date
	isReplay bool
	body     string
}

func sendRequest(address, key, amount string) answer {
	req, err := http.NewRequest("POST", address, strings.NewReader(amount))
	Check(err)
	req.SetBasicAuth("alice", "secret")
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	Check(err)

	replayed := resp.Header.Get("Idempotent-Replayed") == "true"
	resp.Header.Del("Idempotent-Replayed")
	resp.Header.Del("Date")
	return answer{resp.StatusCode, resp.Header, replayed, string(body)}
}

func (a answer) hasContentOf(b answer) bool {
	return a.status == b.status && a.body == b.body && reflect.DeepEqual(a.header, b.header)
}

func (a answer) printAnswer(what string) {
	fmt.Printf("  %s  %d, replayed: %-5t  %s\n", what, a.status, a.isReplay, a.body)
}

func checkPromise(ok bool, promise string) {
	if !ok {
		log.Fatalf("this is broken: %s", promise)
	}
}

// Pieces parses the body of r: the number of pieces that the client orders.
func Pieces(r *http.Request) (pieces int, err error) {
	_, err = fmt.Fscan(r.Body, &pieces)
	return pieces, err
}

// Check ends the program if err is not nil.
func Check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
