package documents_test

import (
	"bufio"
	"bytes"
	"go/format"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// The first program of the README answers its curl commands as the README shows. Only dates may differ.
func TestReadmeProgramAnswersAsShown(t *testing.T) {
	t.Parallel()
	readme := read(t, "README.md")
	program := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindStringSubmatch(readme)
	require.NotNil(t, program)
	address := start(t, program[1])

	_, commands, found := strings.Cut(readme, "```\n$ curl ")
	require.True(t, found)
	commands, _, _ = strings.Cut("$ curl "+commands, "\n```")
	exchanges := strings.Split(commands, "$ ")[1:]
	require.Len(t, exchanges, 2)
	for _, exchange := range exchanges {
		command, answer, _ := strings.Cut(strings.TrimSpace(exchange), "\n")
		require.Equal(t, undated(answer), undated(curl(t, command, address)))
	}
}

// start runs a program that serves localhost:8080, on another port, and returns its address.
func start(t *testing.T, program string) string {
	t.Helper()
	address := freeAddress(t)
	require.Contains(t, program, `"localhost:8080"`)
	source := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(source, []byte(strings.ReplaceAll(program, "localhost:8080", address)), 0o600))
	binary := filepath.Join(t.TempDir(), "program")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source).CombinedOutput()
	require.NoError(t, err, string(out))
	server := exec.CommandContext(t.Context(), binary) // killed at the end of the test
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Wait() })
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		return err == nil && conn.Close() == nil
	}, 10*time.Second, 10*time.Millisecond)
	return address
}

// freeAddress returns an address whose port no system gives to connections by itself, and no other test takes.
func freeAddress(t *testing.T) string {
	t.Helper()
	for {
		address := "localhost:" + strconv.Itoa(22000+rand.IntN(10000))
		if listener, err := net.Listen("tcp", address); err == nil {
			require.NoError(t, listener.Close())
			return address
		}
	}
}

// curl does what a curl command of the README says, at another address, and returns what curl -i prints.
func curl(t *testing.T, command, address string) string {
	t.Helper()
	parts := regexp.MustCompile(
		`^curl -i -u (\w+):(\w+) -H '([\w-]+): ([\w-]+)' -d (\S+) localhost:8080(/\w+)$`).FindStringSubmatch(command)
	require.NotNil(t, parts, command)
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+parts[6], strings.NewReader(parts[5]))
	require.NoError(t, err)
	r.SetBasicAuth(parts[1], parts[2])
	r.Header.Set(parts[3], parts[4])
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, r.Write(conn))
	var wire bytes.Buffer
	answer, err := http.ReadResponse(bufio.NewReader(io.TeeReader(conn, &wire)), r)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, answer.Body)
	require.NoError(t, err)
	return strings.ReplaceAll(wire.String(), "\r\n", "\n")
}

func undated(answer string) string {
	return strings.TrimSpace(regexp.MustCompile(`Date: .*`).ReplaceAllString(answer, "Date: (now)"))
}

// What the README has a user type, until a version is released, makes a program that uses the root module and a store. The
// other modules have the versions that the workspace has, so that nothing is downloaded.
func TestReadmeInstallsFromAClone(t *testing.T) {
	t.Parallel()
	_, typed, found := strings.Cut(read(t, "README.md"), "No version has been released yet.")
	if !found {
		t.Skip("a version is released")
	}
	_, typed, _ = strings.Cut(typed, "\n```\n")
	typed, _, _ = strings.Cut(typed, "\n```")
	clone, typed, _ := strings.Cut(typed, "\n")
	require.Equal(t, "git clone https://github.com/idempotency-go/idempotency ../idempotency", clone)
	shop := filepath.Join(t.TempDir(), "shop")
	require.NoError(t, os.Mkdir(shop, 0o700))
	require.NoError(t, os.Symlink(root, filepath.Join(shop, "..", "idempotency")))

	const module = "github.com/idempotency-go/idempotency"
	program := "package main\n\nfunc main() {}\n"
	var edits []string
	for _, replaced := range regexp.MustCompile(`-replace (\S+)=`).FindAllStringSubmatch(typed, -1) {
		program = strings.Replace(program, "\n\n", "\n\nimport _ \""+replaced[1]+"\"\n", 1)
		command := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
			"{{with .Module}}{{if not .Main}}-require={{.Path}}@{{.Version}}{{end}}{{end}}", replaced[1])
		out, err := command.Output()
		require.NoError(t, err)
		edits = append(edits, strings.Fields(string(out))...)
	}
	require.Contains(t, program, `"`+module+`"`)
	require.Contains(t, program, `"`+module+`/stores/pgxstore"`)
	require.NoError(t, os.WriteFile(filepath.Join(shop, "main.go"), []byte(program), 0o600))
	commands := [][]string{{"go", "mod", "init", "example.com/shop"}, append([]string{"go", "mod", "edit"}, edits...)}
	for line := range strings.Lines(typed) {
		commands = append(commands, strings.Fields(line))
	}
	// The last one would download the tests of all dependencies. This one finds what is imported in the same way.
	require.Equal(t, []string{"go", "mod", "tidy"}, commands[len(commands)-1])
	commands[len(commands)-1] = []string{"go", "list", "-mod=mod", "-deps", "."}
	for _, words := range commands {
		command := exec.CommandContext(t.Context(), words[0], words[1:]...)
		command.Dir, command.Env = shop, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		out, err := command.CombinedOutput()
		require.NoError(t, err, "%s\n%s", words, out)
	}
}

func TestReadmeSnippetsAreCompiledExamples(t *testing.T) {
	t.Parallel()
	examples := unindented(examplesIn(t, ".") + examplesIn(t, "*") + examplesIn(t, "stores/*") + examplesIn(t, "adapters/*"))
	pages := read(t, "README.md") + read(t, "docs/stores.md")
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(pages, -1)
	require.NotEmpty(t, snippets)
	for _, snippet := range snippets {
		if strings.HasPrefix(snippet[1], "package main") {
			requireProgram(t, snippet[1])
			continue
		}
		require.Contains(t, examples, "\n"+unindented(snippet[1]))
	}
}

// requireProgram fails if a program is not formatted, or does not compile.
func requireProgram(t *testing.T, program string) {
	t.Helper()
	formatted, err := format.Source([]byte(program))
	require.NoError(t, err)
	require.Equal(t, string(formatted), program)
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput()
	require.NoError(t, err, string(out))
}

// The README leaves the options to their comments: each field has one, in Options or in RunnerOptions.
func TestEveryOptionIsDescribed(t *testing.T) {
	t.Parallel()
	require.Contains(t, read(t, "README.md"), "(options.go)")
	for _, option := range reflect.VisibleFields(reflect.TypeFor[idempotency.Options]()) {
		require.Regexp(t, `\n\t// `+option.Name+` .*\n(\t//.*\n)*\t`+option.Name+` `, read(t, "options.go"))
	}
}

// The commands of the README name programs, targets and scripts that are there. CI runs them, or their tests do.
func TestReadmeCommandsAreThere(t *testing.T) {
	t.Parallel()
	readme := read(t, "README.md")
	programs := regexp.MustCompile(`go run (\./[\w./-]+)`).FindAllStringSubmatch(readme, -1)
	require.NotEmpty(t, programs)
	for _, program := range programs {
		require.FileExists(t, filepath.Join(program[1], "main.go"))
	}
	for _, target := range regexp.MustCompile("\\bmake (\\w+)[`\n]").FindAllStringSubmatch(readme, -1) {
		require.Contains(t, read(t, "Makefile"), "\n"+target[1]+":")
	}
	for _, script := range regexp.MustCompile("`(\\.ci/\\w+)").FindAllStringSubmatch(readme, -1) {
		require.FileExists(t, script[1])
	}
}
