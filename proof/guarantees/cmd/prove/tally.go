package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// tally holds the counts in the output of a proof, and the output to print if the proof fails.
type tally struct {
	counts        []count
	testOutputs   map[string]string // the output of each test that has not passed yet, by package and name
	failureOutput strings.Builder   // the output to print if the proof fails
}

// count is the sum of one count of all tests of the proof, for example of the deaths.
type count struct {
	name  string
	total int64
}

func (t *tally) addCount(name string, n int64) {
	i := slices.IndexFunc(t.counts, func(c count) bool { return c.name == name })
	if i < 0 {
		i = len(t.counts)
		t.counts = append(t.counts, count{name: name})
	}
	t.counts[i].total += n
}

// event is a line of the output of "go test -json".
type event struct {
	Action, Package, Test, Key, Value, Output string
}

// countLine matches a count of a program other than go test: "count soak requests 1234".
var countLine = regexp.MustCompile(`^count \S+ (.+) (\d+)\n?$`)

// readLine adds the count in line to the tally, and keeps a line without a count in failureOutput.
func (t *tally) readLine(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) == nil {
		t.readEvent(e)
	} else if match := countLine.FindStringSubmatch(line); match != nil {
		n, _ := strconv.ParseInt(match[2], 10, 64)
		t.addCount(match[1], n)
	} else {
		t.failureOutput.WriteString(line)
	}
}

// readEvent adds an event of a test to the tally. The output of a test is kept until the test ends, and goes to failureOutput
// only if the test fails.
func (t *tally) readEvent(e event) {
	if t.testOutputs == nil {
		t.testOutputs = make(map[string]string)
	}
	name := e.Package + "." + e.Test
	switch e.Action {
	case "attr":
		if n, err := strconv.ParseInt(e.Value, 10, 64); err == nil {
			t.addCount(strings.ReplaceAll(e.Key, "-", " "), n)
		}
	case "build-output":
		t.failureOutput.WriteString(e.Output)
	case "output":
		t.testOutputs[name] += e.Output
	case "pass":
		delete(t.testOutputs, name)
		if e.Test != "" && !strings.Contains(e.Test, "/") {
			t.addCount("tests", 1)
		}
	case "skip":
		delete(t.testOutputs, name)
		if e.Test != "" { // skipped subtests count, too
			t.addCount("tests skipped", 1)
		}
	case "fail":
		if e.Test == "" {
			t.keepUnfinished(e.Package)
		}
		t.failureOutput.WriteString(t.testOutputs[name])
		delete(t.testOutputs, name)
	}
}

// keepUnfinished moves the output of the unfinished tests of a failed package to failureOutput, because one of these tests has
// crashed or hangs, and no event names that test.
func (t *tally) keepUnfinished(pkg string) {
	for _, name := range slices.Sorted(maps.Keys(t.testOutputs)) {
		if test, found := strings.CutPrefix(name, pkg+"."); found && test != "" {
			t.failureOutput.WriteString(t.testOutputs[name])
			delete(t.testOutputs, name)
		}
	}
}

// String returns the counts in the form "1,234 deaths, 5 tests".
func (t *tally) String() string {
	var words []string
	for _, c := range t.counts {
		words = append(words, formatThousands(c.total)+" "+c.name)
	}
	return strings.Join(words, ", ")
}

// formatThousands returns n in the form "1,234,567".
func formatThousands(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%s,%03d", formatThousands(n/1000), n%1000)
}
