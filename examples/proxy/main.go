// Proxy guards a service that is not written in Go and ignores idempotency keys: a Perl script that charges a card for each
// request. The program builds idempotency-proxy, and runs the proxy in front of the script, with the records in a file. The
// program kills the proxy while Alice's card is being charged, starts the proxy again, and ends with the line
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
	ctx, cancel := context.WithCancel(context.Background()) // cancel ends the child processes
	dir, err := os.MkdirTemp("", "proxy")
	demo.Check(err)
	verdict, err := runScenario(ctx, dir)
	cancel()
	childProcesses.Wait()
	_ = os.RemoveAll(dir)
	demo.Check(err)
	fmt.Println(verdict)
	if verdict != "51 requests of Alice's, 1 charge, 50 identical answers" {
		log.Fatal("this is broken")
	}
}

// childProcesses waits for the script and the proxy.
var childProcesses sync.WaitGroup

// startProcess starts cmd, and returns a channel that is closed when the process has ended.
func startProcess(cmd *exec.Cmd) (<-chan struct{}, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	childProcesses.Go(func() {
		_ = cmd.Wait()
		close(done)
	})
	return done, nil
}

// runScenario sends the requests, prints the answers, and returns the last line.
func runScenario(ctx context.Context, dir string) (string, error) {
	ledger := filepath.Join(dir, "ledger")
	bank, err := startService(ctx, dir, ledger)
	if err != nil {
		return "", err
	}
	program, err := buildProxy(ctx, dir)
	if err != nil {
		return "", err
	}
	addr, err := freeAddress()
	if err != nil {
		return "", err
	}
	startProxy := func() (kill func(), err error) {
		return startListener(ctx, addr, program,
			"-listen", addr,
			"-upstream", "http://127.0.0.1:"+bank.port,
			"-store", "sqlite:"+filepath.Join(dir, "records.db"),
			"-user-header", "X-User", // your authentication sets this field; in this example, the clients set it
			"-abandoned", "re-execute", // the service recognizes repeated operations
			"-lease", "3s", "-wait", "30s")
	}

	kill, err := startProxy()
	if err != nil {
		return "", err
	}
	fmt.Println("alice  orders a payment of 4200")
	go func() { _, _ = sendPayment(addr, "alice", 4200) }() // the answer is lost
	if err := bank.awaitCharge(); err != nil {
		return "", err
	}
	fmt.Println("       the proxy is killed while her card is being charged, and started again")
	kill()
	if _, err := startProxy(); err != nil {
		return "", err
	}
	fmt.Println("alice  tries again, 50 times at once")
	identical := retryPayment(addr, 50)
	reused, err := sendPayment(addr, "alice", 9900)
	if err != nil {
		return "", err
	}
	fmt.Println("alice  orders a payment of 9900 with the same key:", reused.status)
	bobs, err := sendPayment(addr, "bob", 4200)
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

// service is the process of the script.
type service struct {
	port        string
	outputLines *bufio.Scanner
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
	if _, err := startProcess(cmd); err != nil {
		return nil, err
	}
	s := &service{outputLines: bufio.NewScanner(output)}
	s.port, err = s.readLine()
	return s, err
}

// awaitCharge waits until the script begins a charge.
func (s *service) awaitCharge() error {
	_, err := s.readLine()
	return err
}

func (s *service) readLine() (string, error) {
	if !s.outputLines.Scan() {
		return "", fmt.Errorf("the service has ended: this is broken")
	}
	return s.outputLines.Text(), nil
}

// buildProxy builds the proxy in dir. The working directory may be any directory of the repository.
func buildProxy(ctx context.Context, dir string) (program string, err error) {
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

// startListener starts program, and returns when the process listens at addr.
func startListener(ctx context.Context, addr, program string, args ...string) (kill func(), err error) {
	cmd := exec.CommandContext(ctx, program, args...)
	done, err := startProcess(cmd)
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

// retryPayment repeats Alice's payment, with all requests at once. It returns the number of answers that have status 201 and are
// equal to the first answer.
func retryPayment(addr string, times int) (identical int) {
	answers := make([]answer, times)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i], _ = sendPayment(addr, "alice", 4200) })
	}
	all.Wait()
	for _, a := range answers {
		if a == answers[0] && a.status == "201 Created" {
			identical++
		}
	}
	return identical
}

// answer is the part of a response that retries must share.
type answer struct{ status, location, body string }

// sendPayment orders a payment. All orders have the same key.
func sendPayment(addr, user string, amount int) (answer, error) {
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
