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

// Witness records the lines of the processes. The methods are never called concurrently.
type Witness interface {
	// RecordLine records a line, and returns an error if the line reports a fault.
	RecordLine(line string) error
	// RecordKill records the name of a process that was killed and has ended its output.
	RecordKill(process string)
	// Acknowledged returns the keys of the acknowledged operations.
	Acknowledged() []string
}

// nameVariable is the environment variable with the name of a process.
const nameVariable = "KILLTEST_PROCESS"

// KillAll starts n processes with env, two at a time, and kills each process at a random time within 0.6 seconds,
// sometimes before the process has begun to work. KillAll returns all faults joined.
//
// On a busy machine, 0.6 seconds may be too short. After a process without output, the next process therefore gets
// twice the time. While no operation is acknowledged, KillAll starts more than n processes, for at most three
// minutes.
func KillAll(n int, witness Witness, env ...string) error {
	return killAll(n, 600*time.Millisecond, witness, env)
}

const (
	longestLife = 10 * time.Second
	longestWait = 3 * time.Minute // long enough even for a very slow machine
)

func killAll(n int, within time.Duration, witness Witness, env []string) error {
	var mu sync.Mutex
	var faults []error
	end := time.Now().Add(longestWait)
	needsMore := func() bool { // no operation was acknowledged yet
		mu.Lock()
		defer mu.Unlock()
		return len(witness.Acknowledged()) == 0 && errors.Join(faults...) == nil && time.Now().Before(end)
	}
	var slots sync.WaitGroup
	for slot := range 2 {
		slots.Go(func() {
			patience := within
			for number := slot; number < n || needsMore(); number += 2 {
				name := strconv.Itoa(number)
				thisPatience := patience
				patience = min(2*patience, max(within, longestLife))
				err := runAndKill(thisPatience, slices.Concat(env, []string{nameVariable + "=" + name}), func(line string) {
					mu.Lock()
					defer mu.Unlock()
					patience = within
					faults = append(faults, witness.RecordLine(line))
				})
				mu.Lock()
				witness.RecordKill(name)
				faults = append(faults, err)
				mu.Unlock()
			}
		})
	}
	slots.Wait()
	return errors.Join(faults...)
}

// runAndKill starts a process and kills the process. A process that ends by itself is an error.
func runAndKill(within time.Duration, env []string, record func(line string)) error {
	cmd := exec.Command(os.Args[0])
	env = append(env, "GORACE=halt_on_error=1") // a data race ends the process
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // the pipe ends with this process
		return err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	kill := time.AfterFunc(rand.N(within), func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	forwardLines(output, record)
	_ = cmd.Wait()
	if how := cmd.ProcessState.String(); how != "signal: killed" {
		return fmt.Errorf("a process has ended by itself: %s", how)
	}
	return nil
}

// forwardLines calls record for each line of output, except an incomplete last line, which the kill may have cut.
func forwardLines(output io.Reader, record func(line string)) {
	for reader := bufio.NewReader(output); ; {
		line, err := reader.ReadString('\n')
		if err != nil {
			return
		}
		record(line)
	}
}
