package grpcidempotency_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/grpcidempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// childVariable is the environment variable with the configuration of a child process. Each child runs a server, and may
// be killed.
const childVariable = "IDEMPOTENCY_TEST_CHILD"

// childConfig is the configuration of a child process.
type childConfig struct {
	Redis    string
	Password string
	Policy   idempotency.Abandoned
	HaltAt   string // where the handler waits to be killed: "before" or "after" the effect. Empty: nowhere
}

// The keys of the handler's effects in Redis. effectsKey is a set of operation IDs, so an operation has at most one
// effect, as with a unique constraint.
const (
	attemptsKey = "attempts"
	effectsKey  = "effects"
)

// runChild serves on the inherited listener until the process is killed.
func runChild() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the parent process has ended
	}()
	var config childConfig
	panicOnError(json.Unmarshal([]byte(os.Getenv(childVariable)), &config))
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	panicOnError(err)
	client := redis.NewClient(&redis.Options{Addr: config.Redis, Password: config.Password})
	runner, err := idempotency.NewRunner(idempotency.NewRedisStore(client, idempotency.RedisOptions{}), idempotency.RunnerOptions{
		Abandoned: config.Policy, Lease: time.Second,
	})
	panicOnError(err)
	guard, err := grpcidempotency.New(runner, grpcidempotency.SingleUser, grpcidempotency.Options{Required: true})
	panicOnError(err)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(guard.Unary))
	server.RegisterService(describeService(func(ctx context.Context, _ int64) (any, error) {
		op, _ := idempotency.FromContext(ctx)
		panicOnError(client.Incr(ctx, attemptsKey).Err())
		haltAt("before", config)
		panicOnError(client.SAdd(ctx, effectsKey, op.ID.String()).Err())
		haltAt("after", config)
		return &receipt{Value: op.ID.String()}, nil
	}), nil)
	panicOnError(server.Serve(listener))
}

// panicOnError panics if err is not nil.
func panicOnError(err error) {
	if err != nil {
		panic(err)
	}
}

// haltAt reports the place on standard output and blocks forever, if config wants the handler to halt at place.
func haltAt(place string, config childConfig) {
	if config.HaltAt == place {
		fmt.Println(place)
		select {}
	}
}

// child is a child process.
type child struct {
	cmd    *exec.Cmd
	output *bufio.Reader
}

// startChild starts a child process that serves on listener.
func startChild(t *testing.T, listener *os.File, config childConfig) *child {
	t.Helper()
	settings, err := json.Marshal(config)
	require.NoError(t, err)
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), childVariable+"="+string(settings))
	cmd.ExtraFiles, cmd.Stderr = []*os.File{listener}, os.Stderr
	_, err = cmd.StdinPipe() // stays open as long as this process lives, see runChild
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd, bufio.NewReader(output)}
	t.Cleanup(c.kill)
	return c
}

// awaitHalt returns when the handler has halted at place.
func (c *child) awaitHalt(t *testing.T, place string) {
	t.Helper()
	line, err := c.output.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, place+"\n", line)
}

// kill kills the process by SIGKILL. A dead process is no error.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// A server is killed during a call, and another process serves at the same address. The retry policy of gRPC finishes
// the call by attempts with the same key.
func TestServerKilledInMidCall(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		policy                    idempotency.Abandoned
		haltAt                    string
		wantCode                  codes.Code
		wantAttempts, wantEffects int64
	}{
		"re-execute, before the effect": {idempotency.ReExecute, "before", codes.OK, 2, 1},
		"re-execute, after the effect":  {idempotency.ReExecute, "after", codes.OK, 2, 1},
		"refuse, before the effect":     {idempotency.Refuse, "before", codes.FailedPrecondition, 1, 0},
		"refuse, after the effect":      {idempotency.Refuse, "after", codes.FailedPrecondition, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t)
			config := childConfig{server.Addr(), servertest.RedisPassword(), tt.policy, tt.haltAt}
			addr, listener := listenInheritable(t)
			conn := dialServer(t, addr, retryPolicy, grpc.WithChainUnaryInterceptor(
				grpcidempotency.UnaryClientInterceptor(grpcidempotency.ClientOptions{}),
			))
			ctx := grpcidempotency.WithKey(t.Context(), "order-1")

			first := startChild(t, listener, config)
			answers := make(chan answer, 1)
			go func() { answers <- invokeMethod(ctx, conn, charge, 4200) }()
			first.awaitHalt(t, tt.haltAt)
			first.kill()
			config.HaltAt = ""
			startChild(t, listener, config)

			got := awaitValue(t, answers)
			require.Equal(t, tt.wantCode, got.Code, got.Message)
			if tt.wantCode != codes.OK {
				require.Equal(t, "OUTCOME_UNKNOWN", refusalReason(t, got.err))
			} else {
				again := invokeMethod(ctx, conn, charge, 4200)
				require.True(t, again.Replayed)
				require.Equal(t, got.withoutMarker(), again.withoutMarker())
			}
			client := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: servertest.RedisPassword()})
			defer client.Close()
			attempts, err := client.Get(t.Context(), attemptsKey).Int64()
			require.NoError(t, err)
			effects, err := client.SCard(t.Context(), effectsKey).Result()
			require.NoError(t, err)
			require.Equal(t, [2]int64{tt.wantAttempts, tt.wantEffects}, [2]int64{attempts, effects})
		})
	}
}

// listenInheritable returns a listener that child processes inherit one after the other. Connections that arrive between
// two children wait for the next child.
func listenInheritable(t *testing.T) (addr string, file *os.File) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close() // leaves the file open, because the file is a copy
	file, err = listener.(*net.TCPListener).File()
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return listener.Addr().String(), file
}
