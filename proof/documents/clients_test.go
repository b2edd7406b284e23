package documents_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

const clientsPage = "docs/clients.md"

// clientProblem is a row of the table of problems.
type clientProblem struct{ code, status, waits, retry string }

// The table has every problem of errors.go, with its status, its Retry-After and its advice.
func TestClientsPageListsEveryProblem(t *testing.T) {
	t.Parallel()
	made := regexp.MustCompile(`Status: http\.Status(\w+), Code: "(.*?)",( RetryAfter: .*?,)? Retry: Retry(\w+),`)
	var want []clientProblem
	for _, m := range made.FindAllStringSubmatch(read(t, "errors.go"), -1) {
		waits := "no"
		if m[3] != "" {
			waits = "yes"
		}
		advice := map[string]idempotency.Retry{
			"SameKey": idempotency.RetrySameKey, "NewKey": idempotency.RetryNewKey, "Never": idempotency.RetryNever,
		}[m[4]]
		problem := clientProblem{code: m[2], status: statusNamed(t, m[1]), waits: waits, retry: string(advice)}
		if !slices.Contains(want, problem) { // store-unavailable has two causes, and in-progress, too
			want = append(want, problem)
		}
	}
	require.Len(t, want, strings.Count(read(t, "README.md"), "<a name=\""))

	var got []clientProblem
	rows := regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (\\d{3}) \\| (yes|no) \\| `([a-z-]+)` \\|")
	for _, m := range rows.FindAllStringSubmatch(read(t, clientsPage), -1) {
		got = append(got, clientProblem{code: m[1], status: m[2], waits: m[3], retry: m[4]})
	}
	require.ElementsMatch(t, want, got)
}

// statusNamed returns the code of a status that net/http names so.
func statusNamed(t *testing.T, name string) string {
	t.Helper()
	for code := 400; code < 600; code++ {
		if strings.ReplaceAll(http.StatusText(code), " ", "") == name {
			return strconv.Itoa(code)
		}
	}
	require.FailNow(t, "no status is named "+name)
	return ""
}

// The README has each problem with the same status and advice.
func TestClientsPageAgreesWithTheReadme(t *testing.T) {
	t.Parallel()
	page := read(t, clientsPage)
	rows := regexp.MustCompile("(?m)^\\| <a name=.* \\| (\\d{3}) `([a-z-]+)`.* \\| `([a-z-]+)` \\| .* \\|$")
	found := rows.FindAllStringSubmatch(read(t, "README.md"), -1)
	require.Len(t, found, strings.Count(read(t, "README.md"), "<a name=\""))
	for _, row := range found {
		require.Regexp(t, "(?m)^\\| `"+row[2]+"` \\| "+row[1]+" \\| \\w+ \\| `"+row[3]+"` \\|", page)
	}
}

// The page names the statuses that DefaultStorable does not store.
func TestClientsPageNamesWhatIsNotFinal(t *testing.T) {
	t.Parallel()
	var passing []string
	for code := 200; code < 500; code++ {
		if !idempotency.DefaultStorable(&idempotency.Response{Status: code}) {
			passing = append(passing, strconv.Itoa(code))
		}
	}
	require.Contains(t, read(t, clientsPage), "\n- the statuses "+strings.Join(passing, ", ")+", and 500 or more;\n")
	for code := 500; code < 600; code++ {
		require.False(t, idempotency.DefaultStorable(&idempotency.Response{Status: code}))
	}
	waiting := idempotency.NewFields(http.Header{"Retry-After": {"1"}})
	require.False(t, idempotency.DefaultStorable(&idempotency.Response{Status: http.StatusConflict, Header: waiting}))
	require.Contains(t, read(t, clientsPage), "\n- 409 with `Retry-After`: the operation is still going on.\n")
	for _, final := range []int{400, 402, 404, 422} {
		require.True(t, idempotency.DefaultStorable(&idempotency.Response{Status: final}))
	}
	require.Contains(t, read(t, clientsPage), "\nAnswers such as 400, 402, 404 and 422 are final, too.")
}

func TestClientsPageStatesTheFormat(t *testing.T) {
	t.Parallel()
	require.Contains(t, read(t, clientsPage), "A key has 1 to 255 visible ASCII characters, without spaces.")
	for value, valid := range map[string]bool{
		"": false, "a": true, strings.Repeat("a", 255): true, strings.Repeat("a", 256): false, "a b": false,
		"!~": true, "\x7f": false, "é": false,
		"a,b": false, "a;b": false, `a\b`: false, `a"b`: false, `"a,b"`: true, `"a;b"`: true, `"a\\b"`: true, `"a\"b"`: true,
	} {
		_, err := idempotency.ParseKey([]string{value})
		require.Equal(t, valid, err == nil, value)
	}
	bare, err := idempotency.ParseKey([]string{"abc"})
	require.NoError(t, err)
	quoted, err := idempotency.ParseKey([]string{`"abc"`})
	require.NoError(t, err)
	require.Equal(t, bare, quoted)
}

// With default options an answer is replayed for 24 hours after its handler has returned.
func TestClientsPageStatesTheDefaults(t *testing.T) {
	t.Parallel()
	page := read(t, clientsPage)
	require.Contains(t, page, "An answer is kept for [24 hours] after the operation has ended.")
	require.Contains(t, page, "`Idempotent-Replayed: true`")
	require.Contains(t, page, "by default `POST` and `PATCH`")
	synctest.Test(t, func(t *testing.T) {
		const work = time.Hour
		runs := 0
		idem, err := idempotency.New(
			idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, idempotency.Options{})
		require.NoError(t, err)
		service := idem.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			time.Sleep(work)
			runs++
		}))
		send := func(method string) string {
			r := httptest.NewRequest(method, "/payments", nil)
			r.Header.Set("Idempotency-Key", "key")
			w := httptest.NewRecorder()
			service.ServeHTTP(w, r)
			return fmt.Sprintf("%q after %d runs", w.Header().Get("Idempotent-Replayed"), runs)
		}
		require.Equal(t, `"" after 1 runs`, send(http.MethodPost))
		time.Sleep(24*time.Hour - time.Minute)
		require.Equal(t, `"true" after 1 runs`, send(http.MethodPost))
		time.Sleep(2 * time.Minute)
		require.Equal(t, `"" after 2 runs`, send(http.MethodPost))
		require.Equal(t, `"" after 3 runs`, send(http.MethodPatch))
		require.Equal(t, `"true" after 3 runs`, send(http.MethodPatch))
		for n, method := range []string{http.MethodPut, http.MethodPut, http.MethodDelete, http.MethodDelete, http.MethodGet} {
			require.Equal(t, fmt.Sprintf(`"" after %d runs`, 4+n), send(method))
		}
		require.NoError(t, idem.Shutdown(t.Context()))
	})
}

// The problem that the page shows is what the library writes.
func TestClientsPageShowsAProblem(t *testing.T) {
	t.Parallel()
	shown := regexp.MustCompile("(?s)Retry-After: 1\n\n({.*?})\n```").FindStringSubmatch(read(t, clientsPage))
	require.NotNil(t, shown)
	details := regexp.MustCompile(`(?s)Code: "in-progress".*?Title:\s+"(.*?)",\s+Detail: "(.*?)"`)
	made := details.FindStringSubmatch(read(t, "errors.go"))
	w := httptest.NewRecorder()
	idempotency.WriteProblem(w, nil, &idempotency.Error{
		Status: http.StatusConflict, Code: "in-progress", Title: made[1], Detail: made[2],
		Retry: idempotency.RetrySameKey, RetryAfter: time.Second,
	})
	require.JSONEq(t, shown[1], w.Body.String())
	require.Equal(t, "1", w.Header().Get("Retry-After"))
}

// Each block of Go stands in the file that is named above it.
func TestClientsPageShowsTheExamples(t *testing.T) {
	t.Parallel()
	requireShown(t, clientsPage, "go")
}

// What the page says of an option is said of one that there is.
func TestClientsPageNamesOptions(t *testing.T) {
	t.Parallel()
	_, last, found := strings.Cut(read(t, clientsPage), "These options change what you publish:")
	require.True(t, found)
	rows := regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(last, -1)
	require.NotEmpty(t, rows)
	for _, row := range rows {
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[1], -1) {
			if name[1] != "Decide" {
				require.Contains(t, read(t, "options.go"), "\n\t"+name[1]+" ")
			}
		}
	}
}
