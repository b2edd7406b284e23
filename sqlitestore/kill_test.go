package sqlitestore_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

var deaths = flag.Int("deaths", 20, "how many processes TestProcessesAreKilled kills")

// Processes that share a file are killed at random. Whatever was acknowledged stays, and an operation is executed again
// only if its attempt was killed, or overtaken, before it was acknowledged.
func TestProcessesAreKilled(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	l := &ledger{
		answers: make(map[string]string),
		ended:   make(map[string]bool), lost: make(map[string]bool), killed: make(map[string]bool),
	}
	var seats sync.WaitGroup
	for seat := range 2 {
		seats.Go(func() {
			for life := range *deaths / 2 {
				l.liveAndDie(t, path, fmt.Sprintf("%d-%d", seat, life))
			}
		})
	}
	seats.Wait()

	store := open(t, path, sqlitestore.Options{}) // nobody holds a lock any more
	for key, body := range l.answers {
		record, claim, err := store.Begin(t.Context(), keyOf(key), mortal)
		require.NoError(t, err)
		require.Nil(t, claim)
		require.NotNil(t, record.Response)
		require.Equal(t, body, string(record.Response.Body))
	}
	require.NotEmpty(t, l.answers)
	require.Empty(t, l.faults)
	twice := l.requireExplained(t, path)
	require.Equal(t, "ok", one[string](t, foreign(t, path), "PRAGMA integrity_check"))
	t.Logf("%d processes were killed, %d operations acknowledged, %d executed again", *deaths, len(l.answers), twice)
}

// ledger is what the processes have said before they were killed.
type ledger struct {
	mu      sync.Mutex
	answers map[string]string // by key
	ended   map[string]bool   // attempts that were acknowledged, as process, key and number
	lost    map[string]bool   // attempts that were told so, because they took longer than their lease
	killed  map[string]bool   // processes
	faults  []string
}

const mortalPath = "SQLITESTORE_MORTAL"

// liveAndDie starts a process and kills it after some time, which now and then is shorter than its start takes.
func (l *ledger) liveAndDie(t *testing.T, path, name string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), mortalPath+"="+path, "MORTAL_NAME="+name)
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe() // ends with this process
	if err != nil {
		t.Error(err)
		return
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Error(err)
		return
	}
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return
	}
	time.AfterFunc(rand.N(600*time.Millisecond), func() { _ = cmd.Process.Kill() })
	l.listen(output)
	_ = cmd.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed[name] = true
	if how := cmd.ProcessState.String(); how != "signal: killed" {
		l.faults = append(l.faults, name+" has ended by itself: "+how)
	}
}

// listen keeps what a process says. The last line may be cut.
func (l *ledger) listen(output io.Reader) {
	for reader := bufio.NewReader(output); ; {
		line, err := reader.ReadString('\n')
		if err != nil {
			return
		}
		l.mu.Lock()
		switch words := strings.Fields(line); words[0] {
		case "answered":
			key, body := words[1], words[2]
			if was, ok := l.answers[key]; ok && was != body {
				l.faults = append(l.faults, key+" has two answers")
			}
			l.answers[key] = body
		case "ended":
			l.ended[words[1]] = true
		case "lost":
			l.lost[words[1]] = true
		default:
			l.faults = append(l.faults, line)
		}
		l.mu.Unlock()
	}
}

// requireExplained returns how many effects were repeated because of a death. No other is, but for those that have lost
// their claim.
func (l *ledger) requireExplained(t *testing.T, path string) (twice int) {
	t.Helper()
	effects, err := os.ReadFile(path + ".effects")
	require.NoError(t, err)
	attempts := make(map[string][]string) // by key, in order
	for line := range strings.Lines(string(effects)) {
		_, key, _ := strings.Cut(strings.TrimSpace(line), "/")
		key, _, _ = strings.Cut(key, "/")
		attempts[key] = append(attempts[key], strings.TrimSpace(line))
	}
	for key := range l.answers {
		require.NotEmpty(t, attempts[key], "%s was answered and not executed", key)
	}
	for _, all := range attempts {
		for _, attempt := range all[:len(all)-1] {
			process, _, _ := strings.Cut(attempt, "/")
			require.True(t, l.killed[process] || l.lost[attempt], "%v", all)
			require.False(t, l.ended[attempt], "%v", all)
			if !l.lost[attempt] {
				twice++
			}
		}
	}
	return twice
}

// mortal has a lease that is shorter than the life of a process.
var mortal = idempotency.ClaimRequest{
	Fingerprint: idempotency.Fingerprint{1}, Lease: 200 * time.Millisecond, TTL: time.Hour, TakeOver: true,
}

// live executes operations until the process is killed. All processes work on the keys of the last second.
func live(path string) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	fail := func(err error) {
		if err != nil {
			fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
			select {}
		}
	}
	store, err := sqlitestore.Open(path, sqlitestore.Options{})
	fail(err)
	effects, err := os.OpenFile(path+".effects", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	fail(err)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for {
				fail(execution(store, effects, keyOfNow()))
			}
		})
	}
	workers.Wait()
}

func keyOfNow() string {
	return strconv.FormatInt(time.Now().Add(-rand.N(time.Second)).UnixMilli()/5, 10)
}

// execution executes an operation, or has its answer replayed, and says so. One write to the file is the effect.
func execution(store idempotency.Store, effects io.Writer, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	record, claim, err := store.Begin(ctx, keyOf(key), mortal)
	if err != nil {
		return err
	}
	if claim == nil {
		if record.Response != nil {
			fmt.Printf("answered %s %s\n", key, record.Response.Body)
		}
		return nil
	}
	attempt := fmt.Sprintf("%s/%s/%d", os.Getenv("MORTAL_NAME"), key, record.Attempt)
	if _, err := io.WriteString(effects, attempt+"\n"); err != nil {
		return err
	}
	resp := idempotency.Response{Status: 201, Body: []byte(uuid.NewString())}
	err = claim.Complete(ctx, resp, time.Hour)
	if errors.Is(err, idempotency.ErrClaimLost) {
		fmt.Println("lost", attempt)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Printf("ended %s\nanswered %s %s\n", attempt, key, resp.Body)
	return nil
}
