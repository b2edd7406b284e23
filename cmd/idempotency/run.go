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
	exitUnknown = 3 // the store has failed, or the record cannot be read, so the result is unknown
	exitRefused = 4 // not forgotten or not resolved: wrong state, changed record, or no confirmation
)

// commandLine has the commands and flags. Kong derives parsing, help and error messages from the tags. With package flag, six
// commands with common flags would need more code, and the flags would be apart from the code that uses them.
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

// exitError is an error with an exit status. If err is nil, the command has already printed the message.
type exitError struct {
	exitStatus int
	err        error
}

func (f *exitError) Error() string {
	if f.err == nil {
		return ""
	}
	return f.err.Error()
}

func (f *exitError) Unwrap() error { return f.err }

func failWith(status int, format string, args ...any) error {
	return &exitError{status, fmt.Errorf(format, args...)}
}

// exitSilently returns an error that ends the program with a status and without a message.
func exitSilently(status int) error { return &exitError{exitStatus: status} }

// runProgram runs the command in args and returns the exit status. An error is printed as a single line.
func runProgram(args []string, env func(string) (string, bool), stdin, stdout, stderr *os.File) (status int) {
	secrets := collectSecrets(env, args)
	defer func() { // the value of a panic may contain a secret, as an error may
		if p := recover(); p != nil {
			fmt.Fprintf(stderr, "idempotency: panic: %s\n%s", visible.Text(secrets.hideSecrets(fmt.Sprint(p))), debug.Stack())
			status = exitUnknown
		}
	}()
	var line commandLine
	parser, err := kong.New(&line, kong.Name("idempotency"), kong.Description(description), kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Vars{"version": programVersion(), "store": storeHelp, "ttl": ttlHelp})
	if err != nil {
		panic(err) // a mistake in commandLine
	}
	kongcompletion.Register(parser) // answers a completion request of the shell and exits
	parsed, err := parser.Parse(args)
	if err == nil {
		out := &completeWriter{underlying: stdout}
		err = out.orIncomplete(parsed.Run(&app{
			flags: &line, lookupEnv: env, secrets: secrets, style: detectColour(stdout, env),
			stdin: stdin, out: out, stderr: stderr, outIsTerminal: term.IsTerminal(int(stdout.Fd())),
		}))
	} else {
		err = &exitError{exitUsage, err}
	}
	if err == nil {
		return exitOK
	}
	printError(stderr, secrets, err)
	if f, ok := errors.AsType[*exitError](err); ok {
		return f.exitStatus
	}
	return exitUnknown
}

// printError prints the text of err in a single line, without secrets. printError prints nothing for an empty text.
func printError(stderr io.Writer, secrets *secretSet, err error) {
	// Errors of the library begin with the name of the program.
	text := strings.ReplaceAll("\n"+secrets.hideSecrets(err.Error()), "\nidempotency: ", "\n")[1:]
	if text != "" {
		fmt.Fprintln(stderr, "idempotency:", visible.Text(strings.ReplaceAll(text, "\n", "; ")))
	}
}

// app is the environment of the commands.
type app struct {
	flags         *commandLine
	lookupEnv     func(string) (string, bool)
	secrets       *secretSet
	stdin         *os.File
	out           io.Writer
	stderr        io.Writer
	outIsTerminal bool // out is a terminal
	style         colourMode
}

// newLogger returns a logger for changes on standard error, so that standard error is an audit trail.
func (a *app) newLogger() *slog.Logger { return slog.New(slog.NewTextHandler(a.stderr, nil)) }

func programVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version + " " + info.GoVersion
}
