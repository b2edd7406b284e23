//go:build linux

package clocks_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/clocks/skew"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// config configures a server process. The process serves /re-execute and /refuse, each with the policy of its name for abandoned
// operations.
type config struct {
	Kind        string
	URL         string // of the server of the store
	Password    string // of Redis
	Clock       string // the file that the clocks of the process follow
	Ledger      string
	Lease       time.Duration
	IdleTimeout time.Duration // of transactions at /re-execute; transactions at /refuse have the default
}

const configVariable = "CLOCKS_SERVER"

// TestMain runs the tests, or a server process if the environment has a config.
func TestMain(m *testing.M) {
	text, ok := os.LookupEnv(configVariable)
	if !ok {
		os.Exit(m.Run())
	}
	var c config
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.serveRequests()
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// child is a server process.
type child struct {
	process *os.Process
	clock   *clock
	url     string
}

// startChild starts a server process, and ends the process after the test.
func startChild(t testing.TB, c config) child {
	t.Helper()
	file := newClock(t)
	c.Clock = file.file.Name()
	text, err := json.Marshal(c)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), configVariable+"="+string(text), "GOMAXPROCS=2")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a stopped process cannot see the end of its standard input
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close() // ends the process
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Wait()
	})
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	return child{cmd.Process, file, "http://" + strings.TrimSpace(addr)}
}

// stopProcess sends SIGSTOP to the process, and waits until the kernel has stopped the process.
func (c child) stopProcess(t testing.TB) {
	t.Helper()
	require.NoError(t, c.process.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.process.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	}, time.Minute, time.Millisecond)
}

func (c child) resumeProcess(t testing.TB) {
	t.Helper()
	require.NoError(t, c.process.Signal(syscall.SIGCONT))
}

// serveRequests serves requests until the standard input is closed.
func (c config) serveRequests() error {
	if err := skew.Follow(c.Clock); err != nil {
		return err
	}
	var mux http.ServeMux
	policies := map[string]idempotency.Abandoned{"/re-execute": idempotency.ReExecute, "/refuse": idempotency.Refuse}
	for path, policy := range policies {
		store, err := c.openStore(policy)
		if err != nil {
			return err
		}
		m, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
			Lease: c.Lease, StoreTimeout: min(c.Lease, 5*time.Second), TTL: time.Hour, Abandoned: policy,
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return err
		}
		mux.Handle(path, m.Handler(http.HandlerFunc(c.handleRequest)))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &stoppableRequest{
			stopPoint: r.Header.Get("Point"), requestName: r.Header.Get("Request-Name"), ledgerURL: c.Ledger,
			passed: make(chan struct{}),
		}
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), stoppableRequestKey{}, v)))
	}))
}

func (c config) openStore(policy idempotency.Abandoned) (stoppableStore, error) {
	i := slices.IndexFunc(kindsWithRows, func(k kind) bool { return k.name == c.Kind })
	var opts pgxstore.Options
	if policy == idempotency.ReExecute {
		opts.IdleTimeout = c.IdleTimeout
	}
	store, _, err := server{kind: kindsWithRows[i], url: c.URL, password: c.Password}.openStore(opts)
	return stoppableStore{store}, err
}

// handleRequest makes the effect of the request, and answers with a text that differs in each execution. If the request asks for
// a report about the end of its context, handleRequest waits for this end after the effect.
func (c config) handleRequest(w http.ResponseWriter, r *http.Request) {
	v := r.Context().Value(stoppableRequestKey{}).(*stoppableRequest)
	op, _ := idempotency.FromContext(r.Context())
	answer := fmt.Sprintf("%s attempt %d of %v in process %d", op.Key.ID, op.Attempt, op.ID, os.Getpid())
	w.Header().Set("Handler", answer)
	if takes, err := time.ParseDuration(r.Header.Get("Takes")); err == nil {
		time.Sleep(takes)
	}
	v.stopAt("before the effect")
	if v.stopPoint == "releasing" || v.stopPoint == "renewing" && !v.awaitRenewal(r.Context()) {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	answer, err := c.makeEffect(r.Context(), op, answer)
	if err != nil {
		v.reportContextEnd(r)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	v.stopAt("after the effect")
	v.reportContextEnd(r)
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, answer)
}

// makeEffect inserts a row if the kind of store is "rows", and otherwise adds an entry to the ledger. It returns the answer of
// the operation: the answer of an earlier attempt if that attempt has inserted the row.
func (c config) makeEffect(ctx context.Context, op idempotency.Operation, answer string) (string, error) {
	if c.Kind != "rows" {
		return answer, callLedger(c.Ledger+"/effect", "Key", op.Key.ID, "Attempt", fmt.Sprint(op.Attempt), "Answer", answer)
	}
	return pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, "insert into effects values ($1, $2)", op.Key.ID, answer)
		ctx.Value(stoppableRequestKey{}).(*stoppableRequest).stopAt(inTransaction)
		return answer, err
	})
}

// callLedger sends a request to the ledger, and waits for the answer without a timeout, because the ledger may hold the request.
func callLedger(url string, header ...string) error {
	req, err := http.NewRequest(http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
