package examples_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// Each example runs and stops by itself. The last line of the output is the line that the documentation of the program shows.
func TestExamplesDoWhatTheySay(t *testing.T) {
	t.Parallel()
	for _, name := range listExamples(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			output := runExample(t, name)
			requireLastLine(t, name, output)
			switch name {
			case "payment":
				beginning := readShownOutput(t, "../docs/steps.md", name)
				require.True(t, strings.HasPrefix(output, beginning), "docs/steps.md shows the beginning of %s", output)
			case "mcp":
				pause := regexp.MustCompile(`in \d+ seconds?`) // what is left of the lease
				output = pause.ReplaceAllString(output, "in 1 second")
				require.Equal(t, readShownOutput(t, "../adapters/mcpidempotency/README.md", name), output)
			case "regions":
				require.Equal(t, readShownOutput(t, "regions/README.md", name), output)
			}
		})
	}
}

// requireLastLine requires that output ends with the line that the documentation of the example shows.
func requireLastLine(t *testing.T, name, output string) {
	t.Helper()
	promised := lastLinePattern.FindStringSubmatch(readDocumentation(t, name))
	require.NotNil(t, promised)
	printed := splitLines(output)
	require.Equal(t, promised[1], printed[len(printed)-1])
}

var lastLinePattern = regexp.MustCompile(`ends\s+with\s+the\s+line\n\n\t(.*)`)

// Without the address of a server, an example starts the server. For example, unique starts PostgreSQL and Redis.
func TestExamplesStartServers(t *testing.T) {
	t.Parallel()
	_ = startServers(t, "unique") // see servertest.Require, for machines without the servers
	requireLastLine(t, "unique", runExampleOn(t, "unique", "DATABASE_URL=", "REDIS_URL="))
}

// The README shows the beginning and the end of the output of the quickstart.
func TestReadmeShowsTheQuickstart(t *testing.T) {
	t.Parallel()
	beginning, end, found := strings.Cut(readShownOutput(t, "../README.md", "quickstart"), "...\n")
	require.True(t, found)
	output := runExample(t, "quickstart")
	require.True(t, strings.HasPrefix(output, beginning), output)
	require.True(t, strings.HasSuffix(output, end), output)
}

// readShownOutput returns the part of the output of an example that the page in file shows.
func readShownOutput(t *testing.T, file, name string) string {
	t.Helper()
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	_, shown, found := strings.Cut(string(page), "$ go run ./examples/"+name+"\n")
	require.True(t, found)
	shown, _, found = strings.Cut(shown, "```")
	require.True(t, found)
	return shown
}

// README.md lists every program.
func TestReadmeListsEveryExample(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, name := range listExamples(t) {
		require.Contains(t, string(readme), "["+name+"]("+name+"/main.go)")
	}
}

// Each row of the table of handlers links to programs that kill their service, and every such program has a row.
func TestEachRowOfTheTableHasAProgram(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/handlers.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "| your handler |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	rows := splitLines(table)[2:]
	require.NotEmpty(t, rows)
	var named []string
	for _, row := range rows {
		programs := programLink.FindAllStringSubmatch(row, -1)
		require.NotEmpty(t, programs, row)
		for _, program := range programs {
			named = append(named, program[1])
		}
	}
	var killed []string
	for _, name := range listExamples(t) {
		source, err := os.ReadFile(filepath.Join(name, "main.go"))
		require.NoError(t, err)
		if strings.Contains(string(source), ".DieAtRandom(") {
			killed = append(killed, name)
		}
	}
	require.Subset(t, named, killed)
	require.Subset(t, killed, named)
}

var programLink = regexp.MustCompile(`\[(\w+)\]\(\.\./examples/\w+/main\.go\)`)

// listExamples returns the directories with a program.
func listExamples(t *testing.T) (names []string) {
	t.Helper()
	programs, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	require.NotEmpty(t, programs)
	for _, program := range programs {
		names = append(names, filepath.Dir(program))
	}
	return names
}

// readDocumentation returns the doc comment of the example's main package.
func readDocumentation(t *testing.T, name string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(name, "main.go"), nil, parser.ParseComments)
	require.NoError(t, err)
	return file.Doc.Text()
}

// runExample runs an example on the servers of this package until the program ends, and returns the output.
func runExample(t *testing.T, name string) string {
	t.Helper()
	return runExampleOn(t, name, startServers(t, name)...)
}

// sharedPostgres is the server of all examples, because each example has its own schema. The server ends with this process.
var sharedPostgres = sync.OnceValues(func() (*servertest.Database, error) {
	return servertest.StartPostgres("max_connections=500")
})

// startServers starts the servers that the example needs, and returns the environment variables with their addresses.
func startServers(t *testing.T, name string) (variables []string) {
	t.Helper()
	if strings.Contains(readDocumentation(t, name), "DATABASE_URL") {
		db, err := sharedPostgres()
		servertest.Require(t, err)
		variables = append(variables, "DATABASE_URL="+db.URL())
	}
	if strings.Contains(readDocumentation(t, name), "REDIS_URL") {
		variables = append(variables, "REDIS_URL=redis://:"+servertest.RedisPassword()+"@"+servertest.Redis(t).Addr())
	}
	if strings.Contains(readDocumentation(t, name), "needs Node.js") {
		_, err := exec.LookPath("npm")
		servertest.Require(t, err)
	}
	return variables
}

// runExampleOn runs an example with the given environment variables, requires success, and returns the output.
func runExampleOn(t *testing.T, name string, variables ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), buildProgram(t, name))
	if strings.Contains(readDocumentation(t, name), "With -run") {
		cmd.Args = append(cmd.Args, "-run") // because the program otherwise waits for a user
	}
	cmd.Env = append(cmd.Environ(), variables...)
	cmd.WaitDelay = 10 * time.Second // because a process that the example has left behind may keep the output open
	var complaints strings.Builder
	cmd.Stderr = &complaints
	output, err := cmd.Output()
	require.NoError(t, err, "%s%s", output, complaints.String())
	return string(output)
}

// programsDir is the directory of all programs, and of the browser's profile.
var programsDir string

// buildAllPrograms builds all programs with one command, because concurrent commands would each compile the shared packages.
var buildAllPrograms = sync.OnceValue(func() error {
	sources, err := filepath.Glob("*/main.go")
	if err != nil {
		return err
	}
	args := []string{"build", "-ldflags=-s -w", "-o", programsDir} // without debug information, to link many programs fast
	for _, source := range sources {
		args = append(args, "./"+filepath.Dir(source))
	}
	build := exec.Command("go", args...)
	said, err := build.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
})

func TestMain(m *testing.M) {
	var err error
	programsDir, err = os.MkdirTemp("", "examples")
	if err != nil {
		panic(err)
	}
	code := m.Run()
	endBrowser()
	_ = os.RemoveAll(programsDir)
	os.Exit(code)
}

// buildProgram builds the programs if necessary, and returns the file of the program with the given name.
func buildProgram(t *testing.T, name string) string {
	t.Helper()
	require.NoError(t, buildAllPrograms())
	return filepath.Join(programsDir, name)
}

// splitLines returns the lines of text, without the space around each line and around the text.
func splitLines(text string) []string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}
