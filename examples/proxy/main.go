// Proxy guards a service that is not written in Go and knows nothing of keys: a script in Perl that charges a card for
// each request. It builds and runs idempotency-proxy in front of it, with its records in a file. The proxy is killed
// while Alice's card is being charged, and started again. It ends with the line
//
//	51 requests of Alice's, 1 charge, 50 identical answers
package main

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

//go:embed service.pl
var script []byte

func main() {
	ctx, cancel := context.WithCancel(context.Background()) // which ends the other programs
	dir, err := os.MkdirTemp("", "proxy")
	demo.Check(err)
	verdict, err := story(ctx, dir)
	cancel()
	ended.Wait()
	_ = os.RemoveAll(dir)
	demo.Check(err)
	fmt.Println(verdict)
	if verdict != "51 requests of Alice's, 1 charge, 50 identical answers" {
		log.Fatal("this is broken")
	}
}

// ended waits for the other programs.
var ended sync.WaitGroup

// launch starts another program, and returns a channel that is closed when it has ended.
func launch(cmd *exec.Cmd) (<-chan struct{}, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	ended.Go(func() {
		_ = cmd.Wait()
		close(done)
	})
	return done, nil
}

// story tells what happens, and returns how it ends.
func story(ctx context.Context, dir string) (string, error) {
	ledger := filepath.Join(dir, "ledger")
	bank, err := startService(ctx, dir, ledger)
	if err != nil {
		return "", err
	}
	program, err := build(ctx, dir)
	if err != nil {
		return "", err
	}
	addr, err := freeAddress()
	if err != nil {
		return "", err
	}
	proxy := func() (kill func(), err error) {
		return start(ctx, addr, program,
			"-listen", addr,
			"-upstream", "http://127.0.0.1:"+bank.port,
			"-store", "sqlite:"+filepath.Join(dir, "records.db"),
			"-user-header", "X-User", // set by what authenticates; here by the clients themselves
			"-abandoned", "re-execute", // the service knows an operation that it is sent again
			"-lease", "3s", "-wait", "30s")
	}

	kill, err := proxy()
	if err != nil {
		return "", err
	}
	fmt.Println("alice  orders a payment of 4200")
	go func() { _, _ = pay(addr, "alice", 4200) }() // gets no answer
	if err := bank.awaitCharge(); err != nil {
		return "", err
	}
	fmt.Println("       the proxy is killed while her card is being charged, and started again")
	kill()
	if _, err := proxy(); err != nil {
		return "", err
	}
	fmt.Println("alice  tries again, 50 times at once")
	identical := retry(addr, 50)
	reused, err := pay(addr, "alice", 9900)
	if err != nil {
		return "", err
	}
	fmt.Println("alice  orders a payment of 9900 with the same key:", reused.status)
	bobs, err := pay(addr, "bob", 4200)
	if err != nil {
		return "", err
	}
	fmt.Println("bob    orders a payment with the same key:", bobs.status)
	if reused.status != "409 Conflict" || bobs.status != "201 Created" {
		return "", fmt.Errorf("a key is good for one user and one request: this is broken")
	}
	charges, err := os.ReadFile(ledger)
	return fmt.Sprintf("51 requests of Alice's, %d charge, %d identical answers",
		strings.Count(string(charges), " alice "), identical), err
}

// service is the script.
type service struct {
	port   string
	output *bufio.Scanner
}

func startService(ctx context.Context, dir, ledger string) (*service, error) {
	file := filepath.Join(dir, "service.pl")
	if err := os.WriteFile(file, script, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "perl", file, "0", ledger, "remember")
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if _, err := launch(cmd); err != nil {
		return nil, err
	}
	s := &service{output: bufio.NewScanner(output)}
	s.port, err = s.line()
	return s, err
}

func (s *service) awaitCharge() error {
	_, err := s.line()
	return err
}

func (s *service) line() (string, error) {
	if !s.output.Scan() {
		return "", fmt.Errorf("the service has ended: this is broken")
	}
	return s.output.Text(), nil
}

// build builds the proxy, wherever in the repository this program was started.
func build(ctx context.Context, dir string) (program string, err error) {
	program = filepath.Join(dir, "idempotency-proxy")
	const source = "github.com/idempotency-go/idempotency/cmd/idempotency-proxy"
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, source)
	cmd.Stderr = os.Stderr
	return program, cmd.Run()
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// start starts a program, and returns when it listens.
func start(ctx context.Context, addr, program string, args ...string) (kill func(), err error) {
	cmd := exec.CommandContext(ctx, program, args...)
	done, err := launch(cmd)
	if err != nil {
		return nil, err
	}
	kill = func() {
		_ = cmd.Process.Kill()
		<-done
	}
	for range 1000 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			return kill, conn.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("the proxy does not listen: this is broken")
}

// retry orders Alice's payment so many times at once, and returns how many answers are those of a charge, and the same.
func retry(addr string, times int) (identical int) {
	answers := make([]answer, times)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i], _ = pay(addr, "alice", 4200) })
	}
	all.Wait()
	for _, a := range answers {
		if a == answers[0] && a.status == "201 Created" {
			identical++
		}
	}
	return identical
}

// answer is what a client makes of a response.
type answer struct{ status, location, body string }

// pay orders a payment. All orders have the same key.
func pay(addr, user string, amount int) (answer, error) {
	body := strings.NewReader(fmt.Sprintf(`{"amount":%d}`, amount))
	r, err := http.NewRequest(http.MethodPost, "http://"+addr+"/payments", body)
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("X-User", user)
	r.Header.Set("Idempotency-Key", "order-1")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.Status, resp.Header.Get("Location"), string(text)}, err
}
