// Redis is a service with its records in Redis: service.go is the whole service. The program is also the client. It starts a
// private Redis, kills Redis after the first answer, and starts Redis again. The program ends with the line
//
//	201 paid by charge 1, 201 paid by charge 1 replayed, without a key 400; charges: 1
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os/exec"
	"strings"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	server, err := servertest.StartRedis("--appendonly", "yes", "--appendfsync", "always")
	if errors.Is(err, exec.ErrNotFound) {
		log.Fatalf("%v: install it", err)
	}
	demo.Check(err)
	defer server.Close()
	bank, stopBank := provider.Start()
	defer stopBank()

	client, err := newClient(redisURL(server))
	demo.Check(err)
	s, err := newService(ctx, client)
	demo.Check(err)
	listener := demo.Listen()
	ended := make(chan error)
	go func() { ended <- s.run(ctx, listener) }()
	url := "http://" + listener.Addr().String() + "/payments"

	first := sendPayment(url, "order-1")
	server.Crash()
	demo.Check(server.Restart())
	retry := sendPayment(url, "order-1")
	withoutKey, _, _ := strings.Cut(sendPayment(url, ""), " ")
	stop()
	demo.Check(<-ended)
	demo.Check(client.Close())

	verdict := fmt.Sprintf("%s, %s, without a key %s; charges: %d", first, retry, withoutKey, bank.Acts())
	fmt.Println(verdict)
	if verdict != "201 paid by charge 1, 201 paid by charge 1 replayed, without a key 400; charges: 1" {
		log.Fatal("this is broken")
	}
}

func redisURL(server *servertest.Server) string {
	return "redis://:" + servertest.RedisPassword() + "@" + server.Addr()
}

// sendPayment sends a payment, and returns the status and the body of the answer.
func sendPayment(url, key string) string {
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader("amount=4200"))
	demo.Check(err)
	r.SetBasicAuth("alice", "secret")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(r)
	demo.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	demo.Check(err)
	answer := fmt.Sprint(resp.StatusCode, " ", string(body))
	if resp.Header.Get("Idempotent-Replayed") == "true" {
		answer += " replayed"
	}
	return answer
}
