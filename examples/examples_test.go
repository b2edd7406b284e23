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

// Each example is a program that runs and stops by itself. Its documentation says with which line it ends.
func TestExamplesDoWhatTheySay(t *testing.T) {
	t.Parallel()
	for _, name := range examples(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			output := run(t, name)
			requireLastLine(t, name, output)
			switch name {
			case "payment":
				require.True(t, strings.HasPrefix(output, shownIn(t, "../docs/steps.md", name)), "docs/steps.md shows the beginning of %s", output)
			case "regions":
				require.Equal(t, shownIn(t, "regions/README.md", name), output)
			}
		})
	}
}

// requireLastLine fails unless the output of an example ends as its documentation says.
func requireLastLine(t *testing.T, name, output string) {
	t.Helper()
	promised := lastLine.FindStringSubmatch(documentation(t, name))
	require.NotNil(t, promised)
	printed := lines(output)
	require.Equal(t, promised[1], printed[len(printed)-1])
}

var lastLine = regexp.MustCompile(`ends\s+with\s+the\s+line\n\n\t(.*)`)

// Without the address of a server, an example starts one. Unique starts PostgreSQL and Redis.
func TestExamplesStartServers(t *testing.T) {
	t.Parallel()
	_ = servers(t, "unique") // they can be started here
	requireLastLine(t, "unique", runOn(t, "unique", "DATABASE_URL=", "REDIS_URL="))
}

// The README shows the beginning and the end of what the quickstart prints.
func TestReadmeShowsTheQuickstart(t *testing.T) {
	t.Parallel()
	beginning, end, found := strings.Cut(shownIn(t, "../README.md", "quickstart"), "...\n")
	require.True(t, found)
	output := run(t, "quickstart")
	require.True(t, strings.HasPrefix(output, beginning), output)
	require.True(t, strings.HasSuffix(output, end), output)
}

// shownIn returns what a page shows of the output of a program.
func shownIn(t *testing.T, file, name string) string {
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
	for _, name := range examples(t) {
		require.Contains(t, string(readme), "["+name+"]("+name+"/main.go)")
	}
}

// Each row of the table that says how to write a handler names programs, whose services are killed.
func TestEachRowOfTheTableHasAProgram(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/handlers.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "| your handler |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	rows := lines(table)[2:]
	require.NotEmpty(t, rows)
	var named []string
	for _, row := range rows {
		programs := programOfRow.FindAllStringSubmatch(row, -1)
		require.NotEmpty(t, programs, row)
		for _, program := range programs {
			named = append(named, program[1])
		}
	}
	var killed []string
	for _, name := range examples(t) {
		source, err := os.ReadFile(filepath.Join(name, "main.go"))
		require.NoError(t, err)
		if strings.Contains(string(source), ".DieAtRandom(") {
			killed = append(killed, name)
		}
	}
	require.Subset(t, named, killed)
	require.Subset(t, killed, named)
}

var programOfRow = regexp.MustCompile(`\[(\w+)\]\(\.\./examples/\w+/main\.go\)`)

// examples lists the directories with a program.
func examples(t *testing.T) (names []string) {
	t.Helper()
	programs, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	require.NotEmpty(t, programs)
	for _, program := range programs {
		names = append(names, filepath.Dir(program))
	}
	return names
}

func documentation(t *testing.T, name string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(name, "main.go"), nil, parser.ParseComments)
	require.NoError(t, err)
	return file.Doc.Text()
}

// run runs an example to its end, on servers of this package, and returns what it prints.
func run(t *testing.T, name string) string {
	t.Helper()
	return runOn(t, name, servers(t, name)...)
}

// postgres is the server that examples share: each has a schema of its own. It ends with this process.
var postgres = sync.OnceValues(func() (*servertest.Database, error) {
	return servertest.StartPostgres("max_connections=500")
})

// servers starts what an example needs, and returns the variables that tell it where.
func servers(t *testing.T, name string) (variables []string) {
	t.Helper()
	if strings.Contains(documentation(t, name), "DATABASE_URL") {
		db, err := postgres()
		servertest.Require(t, err)
		variables = append(variables, "DATABASE_URL="+db.URL())
	}
	if strings.Contains(documentation(t, name), "REDIS_URL") {
		variables = append(variables, "REDIS_URL=redis://:"+servertest.RedisPassword()+"@"+servertest.Redis(t).Addr())
	}
	if strings.Contains(documentation(t, name), "needs Node.js") {
		_, err := exec.LookPath("npm")
		servertest.Require(t, err)
	}
	return variables
}

// runOn runs an example to its end, which must be a success. The variables name the servers that it uses.
func runOn(t *testing.T, name string, variables ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), built(t, name))
	if strings.Contains(documentation(t, name), "With -run") {
		cmd.Args = append(cmd.Args, "-run") // without it, the program waits for somebody to use it
	}
	cmd.Env = append(cmd.Environ(), variables...)
	cmd.WaitDelay = 10 * time.Second // for output: a program that it has left behind must not hold up the test
	var complaints strings.Builder
	cmd.Stderr = &complaints
	output, err := cmd.Output()
	require.NoError(t, err, "%s%s", output, complaints.String())
	return string(output)
}

// programs is the directory of all programs, and of what the browser writes.
var programs string

// buildAll builds them by one command: several side by side would each compile what they share.
var buildAll = sync.OnceValue(func() error {
	sources, err := filepath.Glob("*/main.go")
	if err != nil {
		return err
	}
	args := []string{"build", "-ldflags=-s -w", "-o", programs} // nobody debugs them, and there are many to link
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
	programs, err = os.MkdirTemp("", "examples")
	if err != nil {
		panic(err)
	}
	code := m.Run()
	endBrowser()
	_ = os.RemoveAll(programs)
	os.Exit(code)
}

// built returns the file of a program.
func built(t *testing.T, name string) string {
	t.Helper()
	require.NoError(t, buildAll())
	return filepath.Join(programs, name)
}

// lines returns the lines of a text, without the space around them and around the text.
func lines(text string) []string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}
