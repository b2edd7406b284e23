package killtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Witness is told what the processes say before they are killed. One goroutine at a time calls its methods.
type Witness interface {
	// Hears takes a line, and returns an error if it says what should not have happened.
	Hears(line string) error
	// Buries takes the name of a process that was killed and says no more.
	Buries(process string)
	// Acknowledged returns the keys of the operations that were acknowledged.
	Acknowledged() []string
}

// nameVariable is the environment variable with the name of a process.
const nameVariable = "KILLTEST_PROCESS"

// KillAll starts n processes with env, two at a time, and kills each at a random time within 0.6 seconds, now and then
// before it has begun to work. On a machine that is too busy for that, the next one gets twice the time of one that has
// said nothing, and more than n are started, for three minutes at most, until one has acknowledged something. It returns
// what should not have happened.
func KillAll(n int, by Witness, env ...string) error {
	return killAll(n, 600*time.Millisecond, by, env)
}

const (
	longestLife = 10 * time.Second
	longestWait = 3 * time.Minute // for what happens sooner unless something is broken, or the machine is very slow
)

func killAll(n int, within time.Duration, by Witness, env []string) error {
	var mu sync.Mutex
	var faults []error
	end := time.Now().Add(longestWait)
	isShort := func() bool { // nothing is shown yet
		mu.Lock()
		defer mu.Unlock()
		return len(by.Acknowledged()) == 0 && errors.Join(faults...) == nil && time.Now().Before(end)
	}
	var seats sync.WaitGroup
	for seat := range 2 {
		seats.Go(func() {
			patience := within
			for life := seat; life < n || isShort(); life += 2 {
				name := strconv.Itoa(life)
				span := patience
				patience = min(2*patience, max(within, longestLife))
				err := liveAndDie(span, slices.Concat(env, []string{nameVariable + "=" + name}), func(line string) {
					mu.Lock()
					defer mu.Unlock()
					patience = within
					faults = append(faults, by.Hears(line))
				})
				mu.Lock()
				by.Buries(name)
				faults = append(faults, err)
				mu.Unlock()
			}
		})
	}
	seats.Wait()
	return errors.Join(faults...)
}

// liveAndDie starts a process and kills it. It returns an error if the process has ended by itself.
func liveAndDie(within time.Duration, env []string, hears func(line string)) error {
	cmd := exec.Command(os.Args[0])
	env = append(env, "GORACE=halt_on_error=1") // a process that has a data race ends by itself
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // ends with this process
		return err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	death := time.AfterFunc(rand.N(within), func() { _ = cmd.Process.Kill() })
	defer death.Stop()
	listen(output, hears)
	_ = cmd.Wait()
	if how := cmd.ProcessState.String(); how != "signal: killed" {
		return fmt.Errorf("a process has ended by itself: %s", how)
	}
	return nil
}

// listen tells what a process says. The last line may be cut, and is not told.
func listen(output io.Reader, hears func(line string)) {
	for reader := bufio.NewReader(output); ; {
		line, err := reader.ReadString('\n')
		if err != nil {
			return
		}
		hears(line)
	}
}
