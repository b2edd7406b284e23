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

// childVariable is the environment variable with the configuration of a server in a process that can be killed.
const childVariable = "IDEMPOTENCY_TEST_CHILD"

type childConfig struct {
	Redis    string
	Password string
	Policy   idempotency.Abandoned
	Halt     string // where the handler waits to be killed: "before" or "after" its effect
}

// The handler's effect is in Redis. It is made once for each ID of an operation, as by a unique constraint.
const (
	attemptsKey = "attempts"
	effectsKey  = "effects"
)

// runChild serves on the listener that it has inherited, until it is killed.
func runChild() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // who started this process has ended
	}()
	var config childConfig
	check(json.Unmarshal([]byte(os.Getenv(childVariable)), &config))
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	check(err)
	client := redis.NewClient(&redis.Options{Addr: config.Redis, Password: config.Password})
	runner, err := idempotency.NewRunner(idempotency.NewRedisStore(client, idempotency.RedisOptions{}), idempotency.RunnerOptions{
		Abandoned: config.Policy, Lease: time.Second,
	})
	check(err)
	guard, err := grpcidempotency.New(runner, grpcidempotency.SingleUser, grpcidempotency.Options{Required: true})
	check(err)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(guard.Unary))
	server.RegisterService(description(func(ctx context.Context, _ int64) (any, error) {
		op, _ := idempotency.FromContext(ctx)
		check(client.Incr(ctx, attemptsKey).Err())
		haltAt("before", config)
		check(client.SAdd(ctx, effectsKey, op.ID.String()).Err())
		haltAt("after", config)
		return &receipt{Value: op.ID.String()}, nil
	}), nil)
	check(server.Serve(listener))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func haltAt(place string, config childConfig) {
	if config.Halt == place {
		fmt.Println(place)
		select {}
	}
}

// child is a process with a server.
type child struct {
	cmd    *exec.Cmd
	output *bufio.Reader
}

func startChild(t *testing.T, listener *os.File, config childConfig) *child {
	t.Helper()
	settings, err := json.Marshal(config)
	require.NoError(t, err)
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), childVariable+"="+string(settings))
	cmd.ExtraFiles, cmd.Stderr = []*os.File{listener}, os.Stderr
	_, err = cmd.StdinPipe() // is open as long as this process lives
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd, bufio.NewReader(output)}
	t.Cleanup(c.kill)
	return c
}

// awaitHalt waits until the handler waits to be killed.
func (c *child) awaitHalt(t *testing.T, place string) {
	t.Helper()
	line, err := c.output.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, place+"\n", line)
}

// kill kills the process by SIGKILL, if it lives.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// A server is killed while it handles a call, and another process takes its address. The retry policy of gRPC alone
// brings the call to its end, by attempts with the same key.
func TestServerKilledInMidCall(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		policy            idempotency.Abandoned
		halt              string
		code              codes.Code
		attempts, effects int64
	}{
		"re-execute, before the effect": {idempotency.ReExecute, "before", codes.OK, 2, 1},
		"re-execute, after the effect":  {idempotency.ReExecute, "after", codes.OK, 2, 1},
		"refuse, before the effect":     {idempotency.Refuse, "before", codes.FailedPrecondition, 1, 0},
		"refuse, after the effect":      {idempotency.Refuse, "after", codes.FailedPrecondition, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t)
			config := childConfig{server.Addr(), servertest.RedisPassword(), tt.policy, tt.halt}
			addr, listener := inheritable(t)
			conn := dial(t, addr, retryPolicy, grpc.WithChainUnaryInterceptor(
				grpcidempotency.UnaryClientInterceptor(grpcidempotency.ClientOptions{}),
			))
			ctx := grpcidempotency.WithKey(t.Context(), "order-1")

			first := startChild(t, listener, config)
			answers := make(chan answer, 1)
			go func() { answers <- invoke(ctx, conn, charge, 4200) }()
			first.awaitHalt(t, tt.halt)
			first.kill()
			config.Halt = ""
			startChild(t, listener, config)

			got := await(t, answers)
			require.Equal(t, tt.code, got.Code, got.Message)
			if tt.code != codes.OK {
				require.Equal(t, "OUTCOME_UNKNOWN", reason(t, got.err))
			} else {
				again := invoke(ctx, conn, charge, 4200)
				require.True(t, again.Replayed)
				require.Equal(t, got.same(), again.same())
			}
			client := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: servertest.RedisPassword()})
			defer client.Close()
			attempts, err := client.Get(t.Context(), attemptsKey).Int64()
			require.NoError(t, err)
			effects, err := client.SCard(t.Context(), effectsKey).Result()
			require.NoError(t, err)
			require.Equal(t, [2]int64{tt.attempts, tt.effects}, [2]int64{attempts, effects})
		})
	}
}

// inheritable returns a listener for processes that follow each other. What connects while there is none waits for the next.
func inheritable(t *testing.T) (addr string, file *os.File) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close() // not of the file, which is a copy
	file, err = listener.(*net.TCPListener).File()
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return listener.Addr().String(), file
}
