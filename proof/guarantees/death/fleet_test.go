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

// programs is the directory of the server.
var programs string

// program builds the server once.
var program = sync.OnceValues(func() (string, error) {
	file := filepath.Join(programs, "server")
	said, err := exec.Command("go", "build", "-o", file, "./server").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}
	return file, nil
})

func TestMain(m *testing.M) {
	var err error
	programs, err = os.MkdirTemp("", "death")
	if err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(code)
}

// fleet are two servers on one store. Each of them starts again at once when it has died, at the same address.
type fleet struct {
	env     []string
	program string
	seats   [2]*seat
	ledger  *os.File
	plan
	orders  chan order    // each server that lives wants to be killed
	enough  chan struct{} // closed when as many servers have died as are wanted
	stop    chan struct{} // closed when no client needs a server any more
	running sync.WaitGroup

	mu     sync.Mutex
	next   int // point
	dead   int
	died   map[string]death.Point // by key, as the servers have said it
	faults []string
}

// order asks clients to kill a server, or, without a point, to send a request that kills nobody.
type order struct {
	seat  int
	point death.Point
	lives chan struct{} // gets a message if the server does not die of it
}

// seat is where one server after the other listens.
type seat struct {
	fleet    *fleet
	number   int
	addr     string
	listener *os.File
}

// plan is what is to become of a fleet.
type plan struct {
	wanted int           // deaths
	points []death.Point // where the servers die, in turn
	guests int           // requests, for each death, that kill nobody
}

// launch starts servers that are to die.
func launch(t *testing.T, config death.Config, provider *killtest.Provider, ledger *os.File, p plan) *fleet {
	t.Helper()
	settings, err := json.Marshal(config)
	require.NoError(t, err)
	file, err := program()
	require.NoError(t, err)
	f := &fleet{
		env:     append(os.Environ(), death.ConfigVariable+"="+string(settings), provider.Env()),
		program: file, ledger: ledger, plan: p,
		orders: make(chan order), enough: make(chan struct{}), stop: make(chan struct{}), died: make(map[string]death.Point),
	}
	for i := range f.seats {
		f.seats[i] = newSeat(t, f, i)
		f.running.Go(f.seats[i].occupy)
	}
	return f
}

// land ends the servers.
func (f *fleet) land() {
	close(f.stop)
	f.running.Wait()
}

func newSeat(t *testing.T, f *fleet, number int) *seat {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	file, err := listener.(*net.TCPListener).File()
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return &seat{f, number, listener.Addr().String(), file}
}

// occupy has a server run all the time.
func (s *seat) occupy() {
	for again := true; again; {
		cmd := exec.Command(s.fleet.program)
		cmd.Env = s.fleet.env
		cmd.ExtraFiles = []*os.File{s.listener, s.fleet.ledger}
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		_, err := cmd.StdinPipe() // is open as long as this process lives
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			s.fleet.fault("%v", err)
			return
		}
		dead := make(chan struct{})
		go func() {
			_ = cmd.Wait()
			close(dead)
		}()
		if again = s.live(dead); again {
			s.fleet.note(said.String(), cmd.ProcessState.Sys().(syscall.WaitStatus))
		} else {
			_ = cmd.Process.Kill()
			<-dead
		}
	}
}

// live gives orders until the server has died of one, which it reports.
func (s *seat) live(dead <-chan struct{}) bool {
	for n := 0; ; n++ {
		o := order{s.number, "", make(chan struct{}, 1)}
		if n%(s.fleet.guests+1) == s.fleet.guests {
			o.point = s.fleet.point()
		} else {
			o.lives <- struct{}{}
		}
		select {
		case s.fleet.orders <- o:
		case <-dead:
			return true
		case <-s.fleet.stop:
			return false
		}
		select {
		case <-o.lives:
		case <-dead:
			return true
		case <-s.fleet.stop:
			return false
		}
	}
}

// point returns where the next server is to die.
func (f *fleet) point() death.Point {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	return f.points[f.next%len(f.points)]
}

// note writes down the death of a server, whose last words tell the key and the point.
func (f *fleet) note(words string, status syscall.WaitStatus) {
	key, point, found := strings.Cut(strings.TrimSpace(words), " ")
	if !found || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		f.fault("a server ended by itself, with %#x: %s", status, words)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.died[key] = death.Point(point)
	if f.dead++; f.dead == f.wanted {
		close(f.enough)
	}
}

func (f *fleet) fault(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, fmt.Sprintf(format, args...))
}
