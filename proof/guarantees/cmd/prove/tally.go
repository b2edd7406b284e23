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

// tally is what the output of a proof says.
type tally struct {
	counts []count
	tests  map[string]string // what each test that is not known to have passed has printed
	failed strings.Builder   // what is worth showing if the proof fails
}

// count is how much of something was done, by all tests of the proof together.
type count struct {
	name string
	n    int64
}

func (t *tally) add(name string, n int64) {
	i := slices.IndexFunc(t.counts, func(c count) bool { return c.name == name })
	if i < 0 {
		i = len(t.counts)
		t.counts = append(t.counts, count{name: name})
	}
	t.counts[i].n += n
}

// event is a line that "go test -json" prints.
type event struct {
	Action, Package, Test, Key, Value, Output string
}

// counted is a line of another program: "count soak requests 1234".
var counted = regexp.MustCompile(`^count \S+ (.+) (\d+)\n?$`)

// read takes from a line what there is to count, and keeps what may be worth showing.
func (t *tally) read(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) == nil {
		t.test(e)
	} else if match := counted.FindStringSubmatch(line); match != nil {
		n, _ := strconv.ParseInt(match[2], 10, 64)
		t.add(match[1], n)
	} else {
		t.failed.WriteString(line)
	}
}

// test takes an event of a test. What it printed counts once it is known whether it failed.
func (t *tally) test(e event) {
	if t.tests == nil {
		t.tests = make(map[string]string)
	}
	name := e.Package + "." + e.Test
	switch e.Action {
	case "attr":
		if n, err := strconv.ParseInt(e.Value, 10, 64); err == nil {
			t.add(strings.ReplaceAll(e.Key, "-", " "), n)
		}
	case "build-output":
		t.failed.WriteString(e.Output)
	case "output":
		t.tests[name] += e.Output
	case "pass":
		delete(t.tests, name)
		if e.Test != "" && !strings.Contains(e.Test, "/") {
			t.add("tests", 1)
		}
	case "skip":
		delete(t.tests, name)
		if e.Test != "" { // a row that is skipped counts, too
			t.add("tests skipped", 1)
		}
	case "fail":
		if e.Test == "" {
			t.keepUnfinished(e.Package)
		}
		t.failed.WriteString(t.tests[name])
		delete(t.tests, name)
	}
}

// keepUnfinished keeps what was printed by the tests of a package that have not ended when it fails: one of them has
// crashed or hangs, and no event says which.
func (t *tally) keepUnfinished(pkg string) {
	for _, name := range slices.Sorted(maps.Keys(t.tests)) {
		if test, found := strings.CutPrefix(name, pkg+"."); found && test != "" {
			t.failed.WriteString(t.tests[name])
			delete(t.tests, name)
		}
	}
}

// String returns "1,234 deaths, 5 tests".
func (t *tally) String() string {
	var words []string
	for _, c := range t.counts {
		words = append(words, thousands(c.n)+" "+c.name)
	}
	return strings.Join(words, ", ")
}

// thousands returns a number as "1,234,567".
func thousands(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
