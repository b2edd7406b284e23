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

// config says what a server process is to be. It serves requests at /re-execute and at /refuse.
type config struct {
	Kind        string
	URL         string // of the store
	Password    string // of Redis
	Clock       string // the file that its clocks follow
	Ledger      string
	Lease       time.Duration
	IdleTimeout time.Duration // of transactions at /re-execute; those at /refuse have the default
}

const configName = "CLOCKS_SERVER"

// TestMain lets this program be a server process.
func TestMain(m *testing.M) {
	text, ok := os.LookupEnv(configName)
	if !ok {
		os.Exit(m.Run())
	}
	var c config
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.serve()
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

// startChild starts a server process, for the duration of the test.
func startChild(t testing.TB, c config) child {
	t.Helper()
	file := newClock(t)
	c.Clock = file.file.Name()
	text, err := json.Marshal(c)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), configName+"="+string(text), "GOMAXPROCS=2")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // one that is stopped does not end by itself
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close() // which ends it
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Wait()
	})
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	return child{cmd.Process, file, "http://" + strings.TrimSpace(addr)}
}

// stop stops the process, and waits until it stands still.
func (c child) stop(t testing.TB) {
	t.Helper()
	require.NoError(t, c.process.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.process.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	}, time.Minute, time.Millisecond)
}

func (c child) resume(t testing.TB) {
	t.Helper()
	require.NoError(t, c.process.Signal(syscall.SIGCONT))
}

// serve serves requests until the standard input is closed.
func (c config) serve() error {
	if err := skew.Follow(c.Clock); err != nil {
		return err
	}
	var mux http.ServeMux
	for path, policy := range map[string]idempotency.Abandoned{"/re-execute": idempotency.ReExecute, "/refuse": idempotency.Refuse} {
		store, err := c.store(policy)
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
		mux.Handle(path, m.Handler(http.HandlerFunc(c.handle)))
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
		v := &visit{point: r.Header.Get("Point"), visitor: r.Header.Get("Visitor"), ledger: c.Ledger, passed: make(chan struct{})}
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	}))
}

func (c config) store(policy idempotency.Abandoned) (stoppable, error) {
	i := slices.IndexFunc(withRows, func(k kind) bool { return k.name == c.Kind })
	var opts pgxstore.Options
	if policy == idempotency.ReExecute {
		opts.IdleTimeout = c.IdleTimeout
	}
	store, _, err := server{kind: withRows[i], url: c.URL, password: c.Password}.open(opts)
	return stoppable{store}, err
}

// handle does what the request is for, and answers with what no other execution answers. One that is told to wait for
// the end of its context does so after its effect.
func (c config) handle(w http.ResponseWriter, r *http.Request) {
	v := r.Context().Value(visitKey{}).(*visit)
	op, _ := idempotency.FromContext(r.Context())
	answer := fmt.Sprintf("%s attempt %d of %v in process %d", op.Key.ID, op.Attempt, op.ID, os.Getpid())
	w.Header().Set("Handler", answer)
	if takes, err := time.ParseDuration(r.Header.Get("Takes")); err == nil {
		time.Sleep(takes)
	}
	v.at("before the effect")
	if v.point == "releasing" || v.point == "renewing" && !v.isRenewed(r.Context()) {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	answer, err := c.effect(r.Context(), op, answer)
	if err != nil {
		v.await(r)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	v.at("after the effect")
	v.await(r)
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, answer)
}

// effect is a row, or else an entry in the ledger. It returns the answer of the operation, which is that of an earlier attempt
// if that has written the row.
func (c config) effect(ctx context.Context, op idempotency.Operation, answer string) (string, error) {
	if c.Kind != "rows" {
		return answer, ask(c.Ledger+"/effect", "Key", op.Key.ID, "Attempt", fmt.Sprint(op.Attempt), "Answer", answer)
	}
	return pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, "insert into effects values ($1, $2)", op.Key.ID, answer)
		ctx.Value(visitKey{}).(*visit).at(inTransaction)
		return answer, err
	})
}

// ask asks the ledger, which may take its time.
func ask(url string, header ...string) error {
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
