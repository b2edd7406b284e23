package documents_test

import (
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

// problemSection is the section of one problem in docs/problems.md.
type problemSection struct {
	code, status string
	waits        bool
	retry        string
}

// docs/problems.md has a section for every problem of errors.go, with the problem's status, Retry-After and advice.
// The type of a problem is the address of its section.
func TestPageListsEveryProblem(t *testing.T) {
	t.Parallel()
	made := regexp.MustCompile(`Status: http\.Status(\w+), Code: "(.*?)",( RetryAfter: .*?,)? Retry: Retry(\w+),`)
	var want []problemSection
	for _, m := range made.FindAllStringSubmatch(readFile(t, "errors.go"), -1) {
		advice := map[string]idempotency.Retry{
			"SameKey": idempotency.RetrySameKey, "NewKey": idempotency.RetryNewKey, "Never": idempotency.RetryNever,
		}[m[4]]
		problem := problemSection{m[2], findStatus(t, m[1]), m[3] != "", string(advice)}
		if !slices.Contains(want, problem) { // store-unavailable and in-progress have two causes each
			want = append(want, problem)
		}
	}
	require.NotEmpty(t, want)

	var got []problemSection
	sections := regexp.MustCompile("(?m)^## (.*)\n\nStatus (\\d{3})(.*)\\. `retry` is `(.*)`\\.$")
	for _, m := range sections.FindAllStringSubmatch(readFile(t, "docs/problems.md"), -1) {
		got = append(got, problemSection{m[1], m[2], strings.Contains(m[3], "`Retry-After`"), m[4]})
	}
	require.ElementsMatch(t, want, got)
	require.Contains(t, readFile(t, "errors.go"), `problemBase = "https://idempotency-go.github.io/idempotency/problems#"`)
}

// findStatus returns the status code whose text in net/http is name, without spaces.
func findStatus(t *testing.T, name string) string {
	t.Helper()
	for code := 400; code < 600; code++ {
		if strings.ReplaceAll(http.StatusText(code), " ", "") == name {
			return strconv.Itoa(code)
		}
	}
	require.FailNow(t, "no status is named "+name)
	return ""
}

// The library writes the same problem that the page shows.
func TestClientsPageShowsAProblem(t *testing.T) {
	t.Parallel()
	shown := regexp.MustCompile("(?s)Retry-After: 1\n\n({.*?})\n```").FindStringSubmatch(readFile(t, clientsPage))
	require.NotNil(t, shown)
	details := regexp.MustCompile(`(?s)Code: "in-progress".*?Title:\s+"(.*?)",\s+Detail: "(.*?)"`)
	made := details.FindStringSubmatch(readFile(t, "errors.go"))
	w := httptest.NewRecorder()
	idempotency.WriteProblem(w, nil, &idempotency.Error{
		Status: http.StatusConflict, Code: "in-progress", Title: made[1], Detail: made[2],
		Retry: idempotency.RetrySameKey, RetryAfter: time.Second,
	})
	require.JSONEq(t, shown[1], w.Body.String())
	require.Equal(t, "1", w.Header().Get("Retry-After"))
}

// The options that the page names exist.
func TestClientsPageNamesOptions(t *testing.T) {
	t.Parallel()
	_, last, found := strings.Cut(readFile(t, clientsPage), "These options change what you publish:")
	require.True(t, found)
	rows := regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(last, -1)
	require.NotEmpty(t, rows)
	for _, row := range rows {
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[1], -1) {
			if name[1] != "Decide" {
				require.Contains(t, readFile(t, "options.go"), "\n\t"+name[1]+" ")
			}
		}
	}
}
