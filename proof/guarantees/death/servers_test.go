package death_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/guarantees/death"
	"github.com/idempotency-go/idempotency/proof/killtest"
)

// programDirectory is the directory of the built server.
var programDirectory string

// buildServer builds the server once, and returns its file.
var buildServer = sync.OnceValues(func() (string, error) {
	file := filepath.Join(programDirectory, "server")
	said, err := exec.Command("go", "build", "-o", file, "./server").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}
	return file, nil
})

func TestMain(m *testing.M) {
	var err error
	programDirectory, err = os.MkdirTemp("", "death")
	if err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(programDirectory)
	os.Exit(code)
}

// serverGroup is two servers with one store. When a server has died, the next server starts at once, at the same address.
type serverGroup struct {
	environment []string
	programFile string
	slots       [2]*serverSlot
	ledgerFile  *os.File
	plan
	orders         chan order    // the orders of the living servers, for the clients
	enoughDied     chan struct{} // closed when the wanted number of servers have died
	stopped        chan struct{} // closed when the clients have finished
	runningServers sync.WaitGroup

	mu         sync.Mutex
	nextIndex  int // of points
	deathCount int
	pointByKey map[string]death.Point // the points of death that the servers have printed
	faults     []string
}

// order makes a pair of clients kill a server. An order without a point is for a request that kills no server.
type order struct {
	slotIndex int
	point     death.Point
	survived  chan struct{} // receives a value if the server survives the request
}

// serverSlot is the address at which the servers of a slot listen, one server after another.
type serverSlot struct {
	servers      *serverGroup
	slotIndex    int
	address      string
	listenerFile *os.File
}

// plan says how many servers of a group die, and where.
type plan struct {
	wantedDeaths     int
	points           []death.Point // where the servers die, in turn
	harmlessRequests int           // for each death
}

// startServers starts a serverGroup whose servers die as p says.
func startServers(t *testing.T, config death.Config, provider *killtest.Provider, ledger *os.File, p plan) *serverGroup {
	t.Helper()
	settings, err := json.Marshal(config)
	require.NoError(t, err)
	file, err := buildServer()
	require.NoError(t, err)
	group := &serverGroup{
		environment: append(os.Environ(), death.ConfigVariable+"="+string(settings), provider.Env()),
		programFile: file, ledgerFile: ledger, plan: p,
		orders: make(chan order), enoughDied: make(chan struct{}), stopped: make(chan struct{}),
		pointByKey: make(map[string]death.Point),
	}
	for i := range group.slots {
		group.slots[i] = newServerSlot(t, group, i)
		group.runningServers.Go(group.slots[i].keepServerRunning)
	}
	return group
}

// stopServers kills the servers, and waits for their end.
func (group *serverGroup) stopServers() {
	close(group.stopped)
	group.runningServers.Wait()
}

func newServerSlot(t *testing.T, group *serverGroup, slotIndex int) *serverSlot {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	file, err := listener.(*net.TCPListener).File()
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return &serverSlot{group, slotIndex, listener.Addr().String(), file}
}

// keepServerRunning runs servers in the slot, one after another, until the group is stopped.
func (s *serverSlot) keepServerRunning() {
	for again := true; again; {
		cmd := exec.Command(s.servers.programFile)
		cmd.Env = s.servers.environment
		cmd.ExtraFiles = []*os.File{s.listenerFile, s.servers.ledgerFile}
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		_, err := cmd.StdinPipe() // the pipe stays open while this process lives
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			s.servers.addFault("%v", err)
			return
		}
		dead := make(chan struct{})
		go func() {
			_ = cmd.Wait()
			close(dead)
		}()
		if again = s.sendOrders(dead); again {
			s.servers.recordDeath(said.String(), cmd.ProcessState.Sys().(syscall.WaitStatus))
		} else {
			_ = cmd.Process.Kill()
			<-dead
		}
	}
}

// sendOrders sends orders until the server has died, and reports whether the server has died. The result is false if the group
// was stopped first.
func (s *serverSlot) sendOrders(dead <-chan struct{}) bool {
	for n := 0; ; n++ {
		o := order{s.slotIndex, "", make(chan struct{}, 1)}
		if n%(s.servers.harmlessRequests+1) == s.servers.harmlessRequests {
			o.point = s.servers.nextPoint()
		} else {
			o.survived <- struct{}{}
		}
		select {
		case s.servers.orders <- o:
		case <-dead:
			return true
		case <-s.servers.stopped:
			return false
		}
		select {
		case <-o.survived:
		case <-dead:
			return true
		case <-s.servers.stopped:
			return false
		}
	}
}

// nextPoint returns the point at which the next server dies.
func (group *serverGroup) nextPoint() death.Point {
	group.mu.Lock()
	defer group.mu.Unlock()
	group.nextIndex++
	return group.points[group.nextIndex%len(group.points)]
}

// recordDeath records the death of a server, which has printed the key and the point before.
func (group *serverGroup) recordDeath(words string, status syscall.WaitStatus) {
	key, point, found := strings.Cut(strings.TrimSpace(words), " ")
	if !found || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		group.addFault("a server ended by itself, with %#x: %s", status, words)
		return
	}
	group.mu.Lock()
	defer group.mu.Unlock()
	group.pointByKey[key] = death.Point(point)
	if group.deathCount++; group.deathCount == group.wantedDeaths {
		close(group.enoughDied)
	}
}

func (group *serverGroup) addFault(format string, args ...any) {
	group.mu.Lock()
	defer group.mu.Unlock()
	group.faults = append(group.faults, fmt.Sprintf(format, args...))
}
