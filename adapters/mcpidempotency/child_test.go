package mcpidempotency_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/mcpidempotency"
	"github.com/idempotency-go/idempotency/proof/killtest"
)

// childVariable is the environment variable with the childConfig of a child process, as JSON. A child process is a server
// of the tool charge, and kills itself at the point that a call names.
const childVariable = "MCPIDEMPOTENCY_TEST_CHILD"

// childConfig configures a child process.
type childConfig struct {
	RedisAddr  string
	Password   string // of Redis
	LedgerPath string // a file with a line for each effect: the key and the number of the attempt
	Refuse     bool
	Stdio      bool // serves a single client over stdio instead of HTTP on the inherited listener
}

// listenerFD is the listener that a child process inherits. Connections wait in the queue of the listener while a process
// dies and the next process starts.
const listenerFD = 3

// deathPoint is a place in the course of a call.
type deathPoint string

// The points, in the order in which a call reaches them.
const (
	beforeClaim  deathPoint = "before the claim"
	afterClaim   deathPoint = "after the claim"
	beforeCharge deathPoint = "before the charge"
	beforeEffect deathPoint = "before the effect" // the provider has charged
	afterEffect  deathPoint = "after the effect"
	beforeStored deathPoint = "before the result is stored"
	afterStored  deathPoint = "after the result is stored"
	beforeAnswer deathPoint = "before the answer"
	halfOfAnswer deathPoint = "half of the answer"
	afterAnswer  deathPoint = "after the answer"
)

// deathKey is the member of _meta with the point at which a call kills its server.
const deathKey = "die"

type deathContextKey struct{}

// dieAt kills this process by SIGKILL if the call of ctx names point.
func dieAt(ctx context.Context, point deathPoint) {
	if ctx.Value(deathContextKey{}) == string(point) {
		killProcess()
	}
}

func killProcess() {
	self, err := os.FindProcess(os.Getpid())
	panicOnError(err)
	_ = self.Kill()
	select {}
}

// runChild serves until the process is killed, or until the client of a server over stdio leaves.
func runChild() {
	var config childConfig
	panicOnError(json.Unmarshal([]byte(os.Getenv(childVariable)), &config))
	client := redis.NewClient(&redis.Options{Addr: config.RedisAddr, Password: config.Password})
	opts := idempotency.RunnerOptions{Lease: childLease, StoreTimeout: childLease, Logger: slog.New(slog.DiscardHandler)}
	if config.Refuse {
		opts.Abandoned = idempotency.Refuse
	}
	runner, err := idempotency.NewRunner(mortalStore{idempotency.NewRedisStore(client, idempotency.RedisOptions{})}, opts)
	panicOnError(err)
	guard, err := mcpidempotency.New(runner, mcpidempotency.SingleUser, mcpidempotency.Options{Required: true})
	panicOnError(err)
	ledger, err := os.OpenFile(config.LedgerPath, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	panicOnError(err)

	server := mcp.NewServer(&mcp.Implementation{Name: "bank", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(
		ctx context.Context, _ *mcp.CallToolRequest, _ payment,
	) (*mcp.CallToolResult, receipt, error) {
		op, _ := idempotency.FromContext(ctx)
		dieAt(ctx, beforeCharge)
		if err := killtest.Charge(ctx); err != nil {
			return nil, receipt{}, err
		}
		dieAt(ctx, beforeEffect)
		if _, err := fmt.Fprintf(ledger, "%s %d\n", op.Key.ID, op.Attempt); err != nil {
			return nil, receipt{}, err
		}
		dieAt(ctx, afterEffect)
		return nil, receipt{rand.Text()}, nil // differs for each execution
	})
	output := new(mortalOutput)
	server.AddReceivingMiddleware(output.readDeath, guard)
	if config.Stdio {
		transport := &mcp.IOTransport{Reader: os.Stdin, Writer: mortalStdout{os.Stdout, output}}
		panicOnError(server.Run(context.Background(), transport))
		return
	}
	go func() { // ends with the parent process, which holds the other end
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	listener, err := net.FileListener(os.NewFile(listenerFD, "listener"))
	panicOnError(err)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	panicOnError(http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(mortalResponse{w, output}, r)
	})))
}

// panicOnError panics if err is not nil.
func panicOnError(err error) {
	if err != nil {
		panic(err)
	}
}

// mortalOutput kills the process while it writes an answer.
type mortalOutput struct {
	death atomic.Value // the deathPoint of the call that is answered next
}

// readDeath is middleware that reads from _meta where a call kills the server.
func (o *mortalOutput) readDeath(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		call, ok := req.(*mcp.CallToolRequest)
		if !ok {
			return next(ctx, method, req)
		}
		ctx = context.WithValue(ctx, deathContextKey{}, call.Params.Meta[deathKey])
		result, err := next(ctx, method, req)
		dieAt(ctx, beforeAnswer)
		if death, ok := call.Params.Meta[deathKey].(string); ok {
			o.death.Store(deathPoint(death))
		}
		return result, err
	}
}

// write writes p to w, and kills the process before or after the second half if p answers the call that kills the server.
func (o *mortalOutput) write(w io.Writer, flush func(), p []byte) (int, error) {
	death := o.death.Load()
	if death == nil || !bytes.Contains(p, []byte(`"result"`)) {
		return w.Write(p)
	}
	if death == halfOfAnswer {
		p = p[:len(p)/2]
	}
	_, _ = w.Write(p)
	flush()
	killProcess()
	return 0, nil
}

type mortalStdout struct {
	io.WriteCloser
	output *mortalOutput
}

func (s mortalStdout) Write(p []byte) (int, error) {
	return s.output.write(s.WriteCloser, func() {}, p)
}

type mortalResponse struct {
	http.ResponseWriter
	output *mortalOutput
}

func (r mortalResponse) Write(p []byte) (int, error) {
	return r.output.write(r.ResponseWriter, r.Flush, p)
}

// Flush implements [http.Flusher].
func (r mortalResponse) Flush() { _ = http.NewResponseController(r.ResponseWriter).Flush() }

// mortalStore kills the process before or after a claim or a completion.
type mortalStore struct{ idempotency.Store }

func (s mortalStore) Unwrap() idempotency.Store { return s.Store }

func (s mortalStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	dieAt(ctx, beforeClaim)
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil && err == nil {
		dieAt(ctx, afterClaim)
		claim = mortalClaim{killtest.ClaimWithSteps{Claim: claim}}
	}
	return record, claim, err
}

type mortalClaim struct{ killtest.ClaimWithSteps }

func (c mortalClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	dieAt(ctx, beforeStored)
	err := c.Claim.Complete(ctx, resp, ttl)
	dieAt(ctx, afterStored)
	return err
}
