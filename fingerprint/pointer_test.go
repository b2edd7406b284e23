package fingerprint_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

type constructor = func(...string) (idempotency.FingerprintFunc, error)

func TestSelectionsOfJSON(t *testing.T) {
	t.Parallel()
	only, less := fingerprint.JSONOnly, fingerprint.JSONWithout
	for _, row := range []struct {
		name     string
		of       constructor
		pointers string
		a, b     string
		same     bool
	}{
		{"elsewhere", only, "/a", `{"a":1,"b":2}`, `{"b":3, "a":1.0}`, true},
		{"selected", only, "/a", `{"a":1}`, `{"a":2}`, false},
		{"other type", only, "/a", `{"a":1}`, `{"a":"1"}`, false},
		{"null and missing", only, "/a", `{"a":null}`, `{}`, false},
		{"moved to another name", only, "/a /b", `{"a":1}`, `{"b":1}`, false},
		{"within", only, "/a", `{"a":{"x":1,"y":2}}`, `{"a":{"y":2,"x":1}}`, true},
		{"in what has no members", only, "/a/b", `{"a":1}`, `{"a":"2"}`, true},
		{"every element", only, "/i/*/s", `{"i":[{"s":1,"t":1},{"s":2}]}`, `{"i":[{"s":1,"t":2},{"s":2}]}`, true},
		{"order of elements", only, "/i/*/s", `{"i":[{"s":1},{"s":2}]}`, `{"i":[{"s":2},{"s":1}]}`, false},
		{"place of an element", only, "/i/*/s", `{"i":[{"s":1},{}]}`, `{"i":[{},{"s":1}]}`, false},
		{"number of elements", only, "/i/*/s", `{"i":[{"s":1}]}`, `{"i":[{"s":1},{}]}`, false},
		{"no elements and no array", only, "/i/*/s", `{"i":[]}`, `{}`, false},
		{"one element", only, "/i/1", `{"i":[1,2]}`, `{"i":[3,2,4]}`, true},
		{"a number is a name", only, "/1", `{"1":1,"2":1}`, `{"1":1,"2":2}`, true},
		{"a name of an object, not an element", only, "/01", `[1,2]`, `[1,3]`, true},
		{"a star is a name", only, "/*", `{"*":1,"a":1}`, `{"*":1,"a":2}`, true},
		{"star of an object, and of an array", only, "/*/*", `{"*":[1]}`, `[{"*":1}]`, false},
		{"escapes", only, "/a~1b~0c~0~01", `{"a/b~c~~1":1,"d":1}`, `{"a\/b\u007ec~~1":1,"d":2}`, true},
		{"escapes, other value", only, "/a~1b~0c~0~01", `{"a/b~c~~1":1}`, `{"a/b~c~~1":2}`, false},
		{"empty name", only, "/", `{"":1,"a":1}`, `{"":1,"a":2}`, true},
		{"a mark in a text", only, "/a/*", `{"a":["(",")"]}`, `{"a":["(,)"]}`, false},

		{"left out", less, "/a", `{"a":1,"b":2}`, `{"a":2,"b":2}`, true},
		{"left out and missing", less, "/a", `{"a":1,"b":2}`, `{"b":2}`, true},
		{"kept", less, "/a", `{"a":1,"b":2}`, `{"a":1,"b":3}`, false},
		{"added", less, "/a", `{}`, `{"b":null}`, false},
		{"left out of each element", less, "/i/*/t", `{"i":[{"s":1,"t":1}]}`, `{"i":[{"s":1}]}`, true},
		{"element without", less, "/i/*/t", `{"i":[{"t":1}]}`, `{"i":[{"t":1},{}]}`, false},
		{"element left out", less, "/0", `[1,2]`, `[3,2]`, true},
		{"element left out, and missing", less, "/0", `[1]`, `[]`, false},
		{"element left out, and moved", less, "/0", `[1,2]`, `[2]`, false},
		{"by a star and by an index", less, "/*/a /0/b", `[{"a":1,"b":1},{"b":1}]`, `[{"b":2},{"a":2,"b":1}]`, true},
		{"by an index, elsewhere", less, "/*/a /0/b", `[{},{"b":1}]`, `[{},{"b":2}]`, false},
		{"all, and an empty array", less, "/a", `{"a":1}`, `[]`, false},
	} {
		f := fingerprint.Must(row.of(strings.Fields(row.pointers)...))
		a, err := content{"", js, row.a}.fingerprint(f)
		require.NoError(t, err, row.name)
		b, err := content{"", js, row.b}.fingerprint(f)
		require.NoError(t, err, row.name)
		require.Equal(t, row.same, a == b, row.name)
	}
}

// What is not selected out of counts whole, and errors are those of the whole body.
func TestSelectionsOfOtherBodies(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]idempotency.FingerprintFunc{
		"only":         fingerprint.Must(fingerprint.JSONOnly("/a")),
		"without":      fingerprint.Must(fingerprint.JSONWithout("/a")),
		"form":         fingerprint.Must(fingerprint.FormOnly("a")),
		"form without": fingerprint.Must(fingerprint.FormWithout("a")),
	} {
		seen := map[idempotency.Fingerprint]string{}
		for _, c := range []content{
			{"", js, ""}, {"", js, "{}"}, {"", js, "[]"}, {"q", js, "{}"}, {"", "a+json", "{}"}, {"", "text/plain", ""},
			{"", "text/plain", `{"b":1}`}, {"", "text/plain", `{"b":2}`}, {"", "", `{"b":1}`},
			{"", urlEncoded, ""}, {"q", urlEncoded, ""}, {"", "multipart/form-data; boundary=x", "--x--"},
			{"", "multipart/form-data; boundary=y", "--x--"},
		} {
			if strings.Contains(name, "only") && c.body == "[]" {
				continue // misses what {} misses
			}
			fp, err := c.fingerprint(f)
			require.NoError(t, err, name)
			require.Empty(t, seen[fp], "%s: %q", name, c)
			seen[fp] = fmt.Sprintf("%q", c)
		}
	}
	for _, of := range []constructor{fingerprint.JSONOnly, fingerprint.JSONWithout} {
		f := fingerprint.Must(of("/a"))
		for _, body := range []string{`{"a":1,"a":1}`, `{"b":{"c":1,"c":2}}`, `{`, `{"b":1e400}`, `{"b":"` + "\xff" + `"}`} {
			_, err := content{"", js, body}.fingerprint(f)
			require.ErrorContains(t, err, "body as JSON", body)
		}
	}
	for _, of := range []constructor{fingerprint.FormOnly, fingerprint.FormWithout} {
		for _, body := range []string{"a=%", "b=%zz", "a=1;b=2"} {
			_, err := content{"", urlEncoded, body}.fingerprint(fingerprint.Must(of("a")))
			require.ErrorContains(t, err, "body as form", body)
		}
	}
}

func TestFaultsOfSelections(t *testing.T) {
	t.Parallel()
	for fault, pointers := range map[string][]string{
		"pointers are missing":              nil,
		"is the whole body":                 {""},
		"does not begin with a slash":       {"a"},
		`"/a~2" has a tilde`:                {"/a~2"},
		`"/a~" has a tilde`:                 {"/a~"},
		`"/a~~0" has a tilde`:               {"/a~~0"},
		"points behind the end":             {"/items/-"},
		"is invalid UTF-8":                  {"/\xff"},
		"is more than 100 deep":             {strings.Repeat("/a", 101)},
		`"/a" lies within "/a"`:             {"/a", "/b", "/a"},
		`"/a/b" lies within "/a"`:           {"/a/b", "/a-b", "/a"},
		"\"/-\" points behind":              {"b", "/-"},
		"\"b\" does not begin with a slash": {"b", "/-"}, // all at once
	} {
		for _, of := range []constructor{fingerprint.JSONOnly, fingerprint.JSONWithout} {
			f, err := of(pointers...)
			require.ErrorContains(t, err, fault)
			require.Nil(t, f)
			require.Panics(t, func() { fingerprint.Must(f, err) })
		}
	}
	for _, of := range []constructor{fingerprint.FormOnly, fingerprint.FormWithout} {
		_, err := of()
		require.ErrorContains(t, err, "names are missing")
		_, err = of("a", "b", "a")
		require.ErrorContains(t, err, `"a" is named twice`)
	}
	_, err := fingerprint.JSONOnly("/a", "/ab", "/a~0", "/*", "/0/-a", strings.Repeat("/b", 100))
	require.NoError(t, err)
}

// The order of names in a program makes no difference, and what its owner does with them later neither.
func TestSelectionsKeepTheirNames(t *testing.T) {
	t.Parallel()
	for _, of := range []constructor{fingerprint.JSONOnly, fingerprint.JSONWithout, fingerprint.FormOnly, fingerprint.FormWithout} {
		names := []string{"/a", "/b"}
		f := fingerprint.Must(of(names...))
		names[0] = "/c"
		for _, c := range []content{{"", js, `{"a":1,"b":2,"c":3}`}, {"", urlEncoded, "/a=1&/b=2&/c=3"}} {
			x, err := c.fingerprint(f)
			require.NoError(t, err)
			y, err := c.fingerprint(fingerprint.Must(of("/b", "/a")))
			require.NoError(t, err)
			require.Equal(t, x, y)
		}
	}
}

// choices are what a fuzzer has chosen, one after the other.
type choices []byte

func (c *choices) next(n int) int {
	if len(*c) == 0 {
		return 0
	}
	first := (*c)[0]
	*c = (*c)[1:]
	return int(first) % n
}

var tokens = []string{"a", "A", "b", "*", "0", "1", "~0", "~1", "", "01"}

// value writes a value of JSON.
func (c *choices) value(depth int) string {
	kind := c.next(9)
	if depth == 0 {
		kind %= 5
	}
	switch kind {
	case 0, 1, 2:
		return []string{"0", "-0", "1", "1.0", "10e-1", "12345678901234567.01", "null", "true", "false"}[c.next(9)]
	case 3, 4:
		return []string{`""`, `"a"`, `"\u0061"`, `"*"`, `"!"`, `"(\",)"`, `"{"`, `"0"`}[c.next(8)]
	case 5, 6:
		var all []string
		for range c.next(4) {
			all = append(all, c.value(depth-1))
		}
		return "[" + strings.Join(all, " ,") + "]"
	}
	var all []string
	for _, i := range rand.New(rand.NewPCG(uint64(c.next(256)), 0)).Perm(len(tokens))[:c.next(5)] {
		name, _ := json.Marshal(strings.NewReplacer("~0", "~", "~1", "/").Replace(tokens[i]))
		all = append(all, string(name)+": "+c.value(depth-1))
	}
	return "{" + strings.Join(all, ",") + "}"
}

func (c *choices) pointers() (all []string) {
	for range 1 + c.next(4) {
		pointer := ""
		for range 1 + c.next(3) {
			pointer += "/" + tokens[c.next(len(tokens))]
		}
		all = append(all, pointer)
	}
	return all
}

// FuzzSelections compares the functions with a slow model: two bodies have the same fingerprint if the model finds the
// same in both, and a body is refused if the model finds another spelling of a selected name. If two other names differ in
// case only, the order of members counts as well, which the model does not see. The second body differs from the first in
// one choice.
func FuzzSelections(f *testing.F) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 400 {
		b := make([]byte, 10+rnd.IntN(60))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		f.Add(b[:8], b[8:], uint16(rnd.Uint32()), byte(rnd.Uint32()))
	}
	f.Fuzz(func(t *testing.T, chosen, first []byte, at uint16, to byte) {
		second := slices.Clone(first)
		if len(second) > 0 {
			second[int(at)%len(second)] = to
		}
		c, x, y := choices(chosen), choices(first), choices(second)
		pointers := c.pointers()
		a, b := x.value(4), y.value(4)
		only, err := fingerprint.JSONOnly(pointers...)
		if err != nil {
			return
		}
		less := fingerprint.Must(fingerprint.JSONWithout(pointers...))
		for _, body := range []string{a, b} {
			if !modelOtherSpelling(model(t, body), pointers) {
				continue
			}
			for _, f := range []idempotency.FingerprintFunc{only, less} {
				_, err := content{"", js, body}.fingerprint(f)
				require.ErrorContains(t, err, "in case only", "%q: %s", pointers, body)
			}
			return
		}
		orderCounts := ordered(model(t, a)) || ordered(model(t, b))
		for _, row := range []struct {
			f    idempotency.FingerprintFunc
			same bool // to the model
		}{
			{only, reflect.DeepEqual(modelOnly(t, a, pointers), modelOnly(t, b, pointers))},
			{less, reflect.DeepEqual(modelWithout(t, a, pointers), modelWithout(t, b, pointers))},
		} {
			same := sameBy(t, row.f, a, b)
			require.True(t, same == row.same || !same && orderCounts, "%q: %s, %s", pointers, a, b)
		}
	})
}

// modelOtherSpelling reports whether a body has a name that differs in case only from one that a pointer selects there.
func modelOtherSpelling(v any, pointers []string) bool {
	var paths [][]string
	for _, pointer := range pointers {
		paths = append(paths, split(pointer))
	}
	return hasOtherSpelling(v, paths)
}

func hasOtherSpelling(v any, paths [][]string) bool {
	paths = slices.DeleteFunc(slices.Clone(paths), func(path []string) bool { return len(path) == 0 })
	beyond := func(tokens ...string) (rest [][]string) {
		for _, path := range paths {
			if slices.Contains(tokens, path[0]) {
				rest = append(rest, path[1:])
			}
		}
		return rest
	}
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			isOther := func(path []string) bool { return strings.EqualFold(path[0], name) }
			within := beyond(name)
			if within == nil && slices.ContainsFunc(paths, isOther) || hasOtherSpelling(member, within) {
				return true
			}
		}
	case []any:
		for i, element := range v {
			if hasOtherSpelling(element, beyond("*", strconv.Itoa(i))) {
				return true
			}
		}
	}
	return false
}

// ordered reports whether an object has two names that differ in case only.
func ordered(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			isOther := func(other string) bool { return other != name && strings.EqualFold(other, name) }
			if ordered(member) || slices.ContainsFunc(slices.Collect(maps.Keys(v)), isOther) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, ordered)
	}
	return false
}

func sameBy(t *testing.T, f idempotency.FingerprintFunc, a, b string) bool {
	t.Helper()
	x, err := content{"", js, a}.fingerprint(f)
	require.NoError(t, err, a)
	y, err := content{"", js, b}.fingerprint(f)
	require.NoError(t, err, b)
	return x == y
}

type (
	nothing struct{} // is where a pointer leads to nothing
	all     []any    // is what a star finds
	number  struct {
		negative bool // also of a zero
		text     string
	}
)

func model(t *testing.T, body string) any {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.UseNumber()
	var v any
	require.NoError(t, decoder.Decode(&v), body)
	return v
}

// plain gives equal numbers one form.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		rat, _ := new(big.Rat).SetString(string(v))
		return number{strings.HasPrefix(string(v), "-"), rat.String()}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case all:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = plain(v[name])
		}
	}
	return v
}

func split(pointer string) []string {
	names := strings.Split(pointer, "/")[1:]
	for i := range names {
		names[i] = strings.ReplaceAll(strings.ReplaceAll(names[i], "~1", "/"), "~0", "~")
	}
	return names
}

func modelOnly(t *testing.T, body string, pointers []string) (found []any) {
	for _, pointer := range pointers {
		found = append(found, plain(lookUp(model(t, body), split(pointer))))
	}
	return found
}

func lookUp(v any, names []string) any {
	if len(names) == 0 {
		return v
	}
	switch v := v.(type) {
	case map[string]any:
		if member, ok := v[names[0]]; ok {
			return lookUp(member, names[1:])
		}
	case []any:
		var found all
		for i, element := range v {
			if names[0] == strconv.Itoa(i) {
				return lookUp(element, names[1:])
			}
			found = append(found, lookUp(element, names[1:]))
		}
		if names[0] == "*" {
			return found
		}
	}
	return nothing{}
}

func modelWithout(t *testing.T, body string, pointers []string) any {
	v := model(t, body)
	for _, pointer := range pointers {
		remove(v, split(pointer))
	}
	return plain(v)
}

func remove(v any, names []string) {
	switch v := v.(type) {
	case map[string]any:
		if len(names) == 1 {
			delete(v, names[0])
			return
		}
		remove(v[names[0]], names[1:])
	case []any:
		for i := range v {
			if names[0] != "*" && names[0] != strconv.Itoa(i) {
				continue
			}
			if len(names) == 1 {
				v[i] = nothing{}
				continue
			}
			remove(v[i], names[1:])
		}
	}
}
