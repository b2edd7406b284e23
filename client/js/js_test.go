package js_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client/js"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// The module passes the tests in index.test.js, against a guarded service.
func TestModule(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	servertest.Require(t, err)
	test := exec.CommandContext(t.Context(), node, "--test", "index.test.js")
	test.Env = append(test.Environ(), "SERVICE="+startService(t))
	output, err := test.CombinedOutput()
	require.NoError(t, err, string(output))
}

// startService starts a service that tells clients what became of their operations, and returns its address. The first
// requests with the parameter lose get no answer, and the outcome of a request with the parameter unknown is unknown.
func startService(t *testing.T) (address string) {
	t.Helper()
	user := func(r *http.Request) (string, error) {
		name, _, _ := r.BasicAuth()
		return name, nil
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), user, idempotency.Options{
		Required: true, Abandoned: idempotency.Refuse, Lease: 100 * time.Millisecond,
		KeyInfo: idempotency.KeyInfo{StatusURL: "/payments/status"}, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	var charges, arrivals atomic.Int32
	guarded := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("unknown") {
			idempotency.Decide(r.Context(), idempotency.Unknown)
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"charges": charges.Add(1), "body": string(body), "type": r.Header.Get("Content-Type"),
		})
	}))
	mux := http.NewServeMux()
	mux.Handle("GET /payments/status", idem.Status())
	mux.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		if lost, _ := strconv.Atoi(r.URL.Query().Get("lose")); lost > 0 && int(arrivals.Add(1)) <= lost {
			guarded.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		guarded.ServeHTTP(w, r)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// The npm package has the files that its users need, and no others. Its licence is that of the repository.
func TestPackage(t *testing.T) {
	t.Parallel()
	npm, err := exec.LookPath("npm")
	servertest.Require(t, err)
	output, err := exec.CommandContext(t.Context(), npm, "pack", "--dry-run", "--json").Output()
	require.NoError(t, err)
	var packed []struct {
		Name, Version string
		Files         []struct{ Path string }
	}
	require.NoError(t, json.Unmarshal(output, &packed), string(output))
	require.Len(t, packed, 1)
	require.Equal(t, "@idempotency-go/client", packed[0].Name)
	require.Equal(t, "0.0.0", packed[0].Version, "the release sets the version")
	var files []string
	for _, file := range packed[0].Files {
		files = append(files, file.Path)
	}
	slices.Sort(files)
	require.Equal(t, []string{"LICENSE", "README.md", "index.d.ts", "index.js", "package.json"}, files)

	manifest := readFile(t, "package.json")
	require.NotContains(t, manifest, "ependencies")
	require.Equal(t, readFile(t, "../../LICENSE"), readFile(t, "LICENSE"))
	require.Equal(t, readFile(t, "index.js"), js.Module)
}

// TypeScript accepts what users write, by the types of the package as npm installs it, and refuses mistakes.
func TestTypes(t *testing.T) {
	t.Parallel()
	npm, err := exec.LookPath("npm")
	servertest.Require(t, err)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("testdata")))
	run(t, ".", npm, "pack", "--pack-destination", dir)
	run(t, dir, npm, "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund")
	run(t, dir, npm, "install", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save",
		"./idempotency-go-client-0.0.0.tgz")
	for _, resolution := range []string{"nodenext", "bundler"} {
		module := map[string]string{"nodenext": "nodenext", "bundler": "esnext"}[resolution]
		run(t, dir, filepath.Join("node_modules", ".bin", "tsc"), "--noEmit", "--strict", "--target", "es2022",
			"--lib", "es2022,dom", "--module", module, "--moduleResolution", resolution, "use.ts")
	}
}

// run runs a program in dir, and requires success.
func run(t *testing.T, dir, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, fmt.Sprintf("%s: %s", program, output))
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}
