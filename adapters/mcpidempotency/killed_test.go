package mcpidempotency_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

var deaths = flag.Int("deaths", 20, "how many servers TestServersOfToolsAreKilled kills")

// childLease is the lease of the child processes. A dead process blocks a key until its lease ends. With a shorter lease, a
// busy machine would lose leases.
const childLease = 2 * time.Second

// killOutcome is what must hold for a key whose first call kills its server.
type killOutcome struct {
	effects   int
	isUnknown bool // the calls after the death get outcome-unknown
	charges   int
}

// killOutcomes has the outcomes with ReExecute and with Refuse for each point.
var killOutcomes = []struct {
	point               deathPoint
	reExecuted, refused killOutcome
}{
	{beforeClaim, killOutcome{1, false, 1}, killOutcome{1, false, 1}},
	{afterClaim, killOutcome{1, false, 1}, killOutcome{0, true, 0}},
	{beforeCharge, killOutcome{1, false, 1}, killOutcome{0, true, 0}},
	{beforeEffect, killOutcome{1, false, 1}, killOutcome{0, true, 1}},
	{afterEffect, killOutcome{2, false, 1}, killOutcome{1, true, 1}},
	{beforeStored, killOutcome{2, false, 1}, killOutcome{1, true, 1}},
	{afterStored, killOutcome{1, false, 1}, killOutcome{1, false, 1}},
	{beforeAnswer, killOutcome{1, false, 1}, killOutcome{1, false, 1}},
	{halfOfAnswer, killOutcome{1, false, 1}, killOutcome{1, false, 1}},
	{afterAnswer, killOutcome{1, false, 1}, killOutcome{1, false, 1}},
}

// Two servers share a store. A call kills its server at each point, over HTTP and over stdio, and the client calls the
// other server with the same key until it has an answer. The provider, which compares keys, charges once. The effect
// without a key happens as often as the policy promises. All answers are the same.
func TestServersOfToolsAreKilled(t *testing.T) {
	t.Parallel()
	for _, overStdio := range []bool{false, true} {
		for _, refuse := range []bool{false, true} {
			t.Run(fmt.Sprintf("stdio=%t, refuse=%t", overStdio, refuse), func(t *testing.T) {
				t.Parallel()
				p := newServerPair(t, childConfig{
					RedisAddr: servertest.Redis(t).Addr(), Password: servertest.RedisPassword(),
					LedgerPath: filepath.Join(t.TempDir(), "ledger"), Refuse: refuse, Stdio: overStdio,
				})
				calls, firstPoint := 0, 0
				if overStdio != refuse { // so that few deaths are at all points
					firstPoint = len(killOutcomes) / 2
				}
				for n := range *deaths / 4 {
					tt := killOutcomes[(firstPoint+n)%len(killOutcomes)]
					want := tt.reExecuted
					if refuse {
						want = tt.refused
					}
					key := fmt.Sprint("order-", n)
					answers := p.callUntilAnswered(key, tt.point)
					calls += len(answers)
					requireOutcome(t, want, answers, tt.point)
					require.Equal(t, want.effects, p.countEffects(key), tt.point)
					require.Equal(t, want.charges, p.countCharges(), tt.point)
				}
				require.NoError(t, p.provider.Explain())
				for name, n := range map[string]int{"deaths": *deaths / 4, "calls": calls, "charges": p.knownCharges} {
					t.Attr(name, strconv.Itoa(n))
				}
			})
		}
	}
}

// requireOutcome checks the answers to all calls with a key. The first call may have an answer, because its server may
// have died after the answer.
func requireOutcome(t *testing.T, want killOutcome, answers []answer, point deathPoint) {
	t.Helper()
	last := answers[len(answers)-1]
	for _, got := range answers {
		if got.err != nil || got.mayBeRepeated() {
			continue
		}
		if want.isUnknown {
			require.Equal(t, "outcome-unknown", got.Code, point)
			continue
		}
		require.Empty(t, got.Code, point)
		require.Equal(t, last.Text, got.Text, point)
	}
	require.Equal(t, !want.isUnknown, last.Replayed, point)
}

// mayBeRepeated reports whether the answer tells the client to call again. On a busy machine, the store may be slow.
func (a answer) mayBeRepeated() bool { return a.Code == "in-progress" || a.Code == "store-unavailable" }

// serverPair is a pair of servers with one store.
type serverPair struct {
	t            *testing.T
	config       childConfig
	provider     *killtest.Provider
	knownCharges int
	http         [2]*httpChild // nil over stdio
}

func newServerPair(t *testing.T, config childConfig) *serverPair {
	t.Helper()
	p := &serverPair{t: t, config: config, provider: killtest.NewProvider(t)}
	if !config.Stdio {
		for i := range p.http {
			p.http[i] = p.startHTTPChild()
		}
	}
	return p
}

// callUntilAnswered calls the first server, which the call kills at point, and then both servers by turns until there is
// a final answer, and once more. The answers of all calls are returned.
func (p *serverPair) callUntilAnswered(key string, point deathPoint) (answers []answer) {
	p.t.Helper()
	params := withKey(key, 4200)
	params.Meta[deathKey] = string(point)
	answers = append(answers, p.callServer(0, params, true))
	delete(params.Meta, deathKey)
	for deadline := time.Now().Add(waitLimit); ; {
		got := p.callServer(len(answers)%2, params, false)
		answers = append(answers, got)
		require.NoError(p.t, got.err, point)
		if !got.mayBeRepeated() {
			return append(answers, p.callServer(len(answers)%2, params, false))
		}
		require.True(p.t, time.Now().Before(deadline), "no answer to %s, killed %s", key, point)
		time.Sleep(20 * time.Millisecond)
	}
}

// callServer calls a server in a session of its own. dies says that the call kills the server.
func (p *serverPair) callServer(server int, params *mcp.CallToolParams, dies bool) (got answer) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), waitLimit)
	defer cancel()
	transport, awaitDeath := p.newTransport(server)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(ctx, transport, nil)
	require.NoError(p.t, err)
	got = callTool(ctx, session, params)
	if dies {
		awaitDeath(func() { _ = session.Close() })
	} else {
		_ = session.Close()
	}
	return got
}

// newTransport returns the transport of a client, and a function that waits for the death of the server. The function calls
// closeSession.
func (p *serverPair) newTransport(server int) (mcp.Transport, func(closeSession func())) {
	if !p.config.Stdio {
		child := p.http[server]
		transport := &mcp.StreamableClientTransport{
			Endpoint: child.url, HTTPClient: child.client, MaxRetries: -1, DisableStandaloneSSE: true,
		}
		return transport, func(closeSession func()) {
			child.awaitDeath()
			child.startProcess()
			closeSession()
		}
	}
	cmd := p.newCommand()
	return &mcp.CommandTransport{Command: cmd}, func(closeSession func()) {
		closeSession()
		requireKilled(p.t, cmd)
	}
}

func requireKilled(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.Equal(t, -1, cmd.ProcessState.ExitCode(), "the server has not been killed: %v", cmd.ProcessState)
}

// newCommand returns the command of a child process.
func (p *serverPair) newCommand() *exec.Cmd {
	p.t.Helper()
	settings, err := json.Marshal(p.config)
	require.NoError(p.t, err)
	program, err := os.Executable()
	require.NoError(p.t, err)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childVariable+"="+string(settings), p.provider.Env())
	cmd.Stderr = os.Stderr
	return cmd
}

// countEffects returns the number of effects of the operation with key.
func (p *serverPair) countEffects(key string) (n int) {
	p.t.Helper()
	text, err := os.ReadFile(p.config.LedgerPath)
	require.NoError(p.t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, key+" ") {
			n++
		}
	}
	return n
}

// countCharges returns the number of charges since the last call of countCharges.
func (p *serverPair) countCharges() int {
	_, _, charges := p.provider.Counts()
	n := charges - p.knownCharges
	p.knownCharges = charges
	return n
}

// httpChild is a server over HTTP. Its processes serve one after the other on one listener.
type httpChild struct {
	pair     *serverPair
	url      string
	client   *http.Client
	listener *os.File
	cmd      *exec.Cmd
}

func (p *serverPair) startHTTPChild() *httpChild {
	p.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(p.t, err)
	defer listener.Close() // leaves the file open, because the file is a copy
	file, err := listener.(*net.TCPListener).File()
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = file.Close() })
	connections := new(http.Transport)
	p.t.Cleanup(connections.CloseIdleConnections)
	child := &httpChild{
		pair: p, url: "http://" + listener.Addr().String(), client: &http.Client{Transport: connections}, listener: file,
	}
	child.startProcess()
	p.t.Cleanup(func() {
		_ = child.cmd.Process.Kill()
		_ = child.cmd.Wait()
	})
	return child
}

func (c *httpChild) startProcess() {
	c.pair.t.Helper()
	c.cmd = c.pair.newCommand()
	c.cmd.ExtraFiles = []*os.File{c.listener}
	_, err := c.cmd.StdinPipe() // stays open as long as this process lives, see runChild
	require.NoError(c.pair.t, err)
	require.NoError(c.pair.t, c.cmd.Start())
}

// awaitDeath waits until the process has killed itself.
func (c *httpChild) awaitDeath() {
	c.pair.t.Helper()
	dead := make(chan error, 1)
	go func() { dead <- c.cmd.Wait() }()
	awaitValue(c.pair.t, dead)
	requireKilled(c.pair.t, c.cmd)
}
