// Durable charges a card in a service whose process is killed when it has stored the answer, and before anybody gets
// it. The service is started again, with no other memory than a file, and the client tries again, 50 times at once. It
// needs nothing else to run, and ends with the line
//
//	51 requests, 1 process killed, 1 charge, 50 identical answers
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
)

func main() {
	time.AfterFunc(time.Minute, func() { log.Fatal("durable: no end after a minute") })
	if process.IsService() {
		serve(os.Getenv("FILE"), os.Getenv("BANK"))
		return
	}
	dir, err := os.MkdirTemp("", "durable")
	demo.Check(err)
	defer os.RemoveAll(dir)
	var charges atomic.Int64
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "charge %d", charges.Add(1))
	}))
	defer bank.Close()
	env := []string{"FILE=" + filepath.Join(dir, "idempotency.db"), "BANK=" + bank.URL}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	service, key := process.New(), rand.Text()
	service.Start(ctx, append(env, "HALT="+answering)...)
	lost := make(chan error, 1)
	go func() {
		_, err := order(service.URL, key)
		lost <- err
	}()
	service.AwaitHalt()
	fmt.Println("the card is charged, the answer is stored, and nobody has it:", charges.Load(), "charge")
	service.Kill()
	if err := <-lost; err == nil {
		log.Fatal("this is broken: a process that was killed has answered")
	}
	fmt.Println("the process is killed, and the client has lost its connection")

	service.Start(ctx, env...)
	fmt.Println("the service is started again, and the client tries again, 50 times at once")
	answers := make([]string, 50)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			var err error
			answers[i], err = order(service.URL, key)
			demo.Check(err)
		})
	}
	all.Wait()
	service.Kill()

	fmt.Println("each time the answer is:", answers[0])
	identical := 0
	for _, answer := range answers {
		if answer == answers[0] && strings.HasPrefix(answer, "201 Created, replayed: true, ") {
			identical++
		}
	}
	verdict := fmt.Sprintf("%d requests, 1 process killed, %d charge, %d identical answers",
		1+len(answers), charges.Load(), identical)
	if verdict != "51 requests, 1 process killed, 1 charge, 50 identical answers" {
		log.Fatal("this is broken: ", verdict)
	}
	fmt.Println(verdict)
}

// order sends an order, and returns what comes back.
func order(url, key string) (string, error) {
	req, err := http.NewRequest(http.MethodPost, url+"/payments", strings.NewReader("4200"))
	if err != nil {
		return "", err
	}
	req.SetBasicAuth("alice", "secret")
	req.Header.Set("Idempotency-Key", key)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, replayed: %t, %s", resp.Status, resp.Header.Get("Idempotent-Replayed") == "true", body), nil
}
