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
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

const clientsPage = "docs/clients.md"

// clientProblem is a row of the table of problems.
type clientProblem struct{ code, status, waits, retry string }

// The tables of both pages have every problem of errors.go, with its status, its Retry-After and its advice. The type of a
// problem is a URL that leads to its row in the README.
func TestPagesListEveryProblem(t *testing.T) {
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
	require.NotEmpty(t, want)

	var got []clientProblem
	rows := regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (\\d{3}) \\| (yes|no) \\| `([a-z-]+)` \\|")
	for _, m := range rows.FindAllStringSubmatch(read(t, clientsPage), -1) {
		got = append(got, clientProblem{code: m[1], status: m[2], waits: m[3], retry: m[4]})
	}
	require.ElementsMatch(t, want, got)

	readme := read(t, "README.md")
	require.Equal(t, len(want), strings.Count(readme, "<a name=\""))
	for _, problem := range want {
		require.Regexp(t, fmt.Sprintf("(?m)^\\| <a name=\"%[1]s\"></a>.* \\| %[2]s `%[1]s`.* \\| `%[3]s` \\| .* \\|$",
			problem.code, problem.status, problem.retry), readme)
	}
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
