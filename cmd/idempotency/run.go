package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"golang.org/x/term"

	"github.com/idempotency-go/idempotency/internal/visible"
)

// The exit statuses, which scripts rely on.
const (
	exitOK      = 0
	exitNothing = 1 // no record, nothing listed; or Check has findings
	exitUsage   = 2
	exitUnknown = 3 // the store could not be asked, or its record cannot be read: nobody knows
	exitRefused = 4 // not forgotten, or not resolved: the state forbids it, it has changed, or a person said no
)

// commandLine is what can be asked for. Kong makes flags, help and faults of six commands with common flags from it, which
// is shorter than one flag.FlagSet for each command, and keeps each flag beside the code that uses it.
type commandLine struct {
	Store   string           `placeholder:"URL" help:"${store}"`
	Timeout time.Duration    `default:"30s" help:"Bound on each question to the store."`
	JSON    bool             `name:"json" help:"Print one JSON document."`
	Version kong.VersionFlag `help:"Print the version and exit."`

	Prefix   string `group:"Redis" help:"RedisOptions.Prefix of the service." placeholder:"TEXT"`
	Cluster  bool   `group:"Redis" help:"The server is one of a Redis Cluster."`
	Replicas int    `group:"Redis" help:"RedisOptions.Replicas of the service, for check and resolve." placeholder:"N"`

	Table         string `group:"PostgreSQL, MySQL and DynamoDB" help:"Options.Table of the service." placeholder:"NAME"`
	Schema        string `group:"PostgreSQL" help:"Options.Schema of the service." placeholder:"NAME"`
	PartitionDays int    `group:"PostgreSQL" help:"Options.PartitionDays of the service." placeholder:"N"`

	Inspect inspectCommand `cmd:"" aliases:"show" help:"Tell what happened to a key, and what a retry gets."`
	List    listCommand    `cmd:"" help:"List what is running, abandoned, or largest."`
	Resolve resolveCommand `cmd:"" help:"End an abandoned operation: it has happened, with its answer, or it has not happened."`
	Forget  forgetCommand  `cmd:"" help:"Remove the record of a key, so that its operation may be executed again."`
	Check   checkCommand   `cmd:"" help:"Report what is unsafe about the store, or broken. Run it as the role of the service."`
	Stats   statsCommand   `cmd:"" help:"Sum up the store: records by state, what is abandoned, the largest users."`

	Completion kongcompletion.Completion `cmd:"" help:"Tell how your shell completes the commands and flags."`
}

const (
	description = `Tells what has happened to idempotency keys in Redis, PostgreSQL, MySQL, MariaDB, SQLite or DynamoDB.

Credentials come from the environment and are never printed. REDIS_URL and DATABASE_URL are the URLs that services use.
Redis also takes its password from REDISCLI_AUTH, PostgreSQL from PGPASSWORD or ~/.pgpass, MySQL from MYSQL_PWD, DynamoDB
its credentials from where AWS has them. A Redis URL with master_name asks Sentinel.

Exit status: 0 done or found; 1 no record, nothing listed, or findings; 2 wrong usage; 3 the store could not be asked, or
the record cannot be read; 4 not forgotten or not resolved: running, not abandoned, changed, or not confirmed.`

	storeHelp = "redis://host:port/0, rediss://, postgres://user@host/database, mysql://user@host/database, sqlite:file, the " +
		"path of a file of SQLite, dynamodb://table?region=eu-central-1, or only 'redis', 'postgres', 'mysql', 'sqlite' or " +
		"'dynamodb'. Without a password. Default: what the environment has."

	ttlHelp = "How long the record is kept from now: Options.TTL of the service. Default: 24h, or as long as it is kept already."
)

// failure is an error with an exit status. Without a message, what there is to say was printed.
type failure struct {
	status int
	err    error
}

func (f *failure) Error() string {
	if f.err == nil {
		return ""
	}
	return f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

func fail(status int, format string, args ...any) error {
	return &failure{status, fmt.Errorf(format, args...)}
}

// nothing ends the program with a status, and says no more.
func nothing(status int) error { return &failure{status: status} }

// run is the program. If it fails, it says why in one line.
func run(args []string, env func(string) (string, bool), stdin, stdout, stderr *os.File) (status int) {
	secrets := secretsIn(env, args)
	defer func() { // the trace of a panic may have what an error has
		if p := recover(); p != nil {
			fmt.Fprintf(stderr, "idempotency: panic: %s\n%s", visible.Text(secrets.hide(fmt.Sprint(p))), debug.Stack())
			status = exitUnknown
		}
	}()
	var line commandLine
	parser, err := kong.New(&line, kong.Name("idempotency"), kong.Description(description), kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Vars{"version": version(), "store": storeHelp, "ttl": ttlHelp})
	if err != nil {
		panic(err) // a fault of commandLine
	}
	kongcompletion.Register(parser) // ends the program if a shell asks
	parsed, err := parser.Parse(args)
	if err == nil {
		out := &output{w: stdout}
		err = out.orFailed(parsed.Run(&app{
			line: &line, env: env, secrets: secrets, style: styleOf(stdout, env),
			stdin: stdin, out: out, questions: stderr, seen: term.IsTerminal(int(stdout.Fd())),
		}))
	} else {
		err = &failure{exitUsage, err}
	}
	if err == nil {
		return exitOK
	}
	complain(stderr, secrets, err)
	if f, ok := errors.AsType[*failure](err); ok {
		return f.status
	}
	return exitUnknown
}

// complain prints all that an error says in one line, if it says anything.
func complain(stderr io.Writer, secrets *secrets, err error) {
	text := strings.ReplaceAll("\n"+secrets.hide(err.Error()), "\nidempotency: ", "\n")[1:] // of the library
	if text != "" {
		fmt.Fprintln(stderr, "idempotency:", visible.Text(strings.ReplaceAll(text, "\n", "; ")))
	}
}

// app is what the commands work with.
type app struct {
	line      *commandLine
	env       func(string) (string, bool)
	secrets   *secrets
	stdin     *os.File
	out       io.Writer
	questions io.Writer
	seen      bool // out is a terminal
	style     style
}

// logger returns the logger of what the program changes: whoever keeps its standard error has an audit trail.
func (a *app) logger() *slog.Logger { return slog.New(slog.NewTextHandler(a.questions, nil)) }

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version + " " + info.GoVersion
}
