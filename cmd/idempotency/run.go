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
	exitNothing = 1 // no record, nothing listed; check or probe has findings
	exitUsage   = 2
	exitUnknown = 3 // the store has failed, or the record cannot be read, so the result is unknown
	exitRefused = 4 // not forgotten or not resolved: wrong state, changed record, or no confirmation
)

// commandLine has the commands and flags. Kong derives parsing, help and error messages from the tags. With package flag, six
// commands with common flags would need more code, and the flags would be apart from the code that uses them.
type commandLine struct {
	Store   string           `placeholder:"URL" help:"${store}"`
	Timeout time.Duration    `default:"30s" help:"Time limit for each request to the store or the service."`
	JSON    bool             `name:"json" help:"Print the result as one JSON document."`
	Version kong.VersionFlag `help:"Print the version and exit."`

	Prefix   string `group:"Redis" help:"RedisOptions.Prefix of the service." placeholder:"TEXT"`
	Cluster  bool   `group:"Redis" help:"The server is a node of a Redis Cluster."`
	Replicas int    `group:"Redis" help:"RedisOptions.Replicas of the service, for check and resolve." placeholder:"N"`

	Table         string `group:"PostgreSQL, MySQL and DynamoDB" help:"Options.Table of the service." placeholder:"NAME"`
	Schema        string `group:"PostgreSQL" help:"Options.Schema of the service." placeholder:"NAME"`
	PartitionDays int    `group:"PostgreSQL" help:"Options.PartitionDays of the service." placeholder:"N"`

	Inspect inspectCommand `cmd:"" aliases:"show" help:"Show the operation of a key, and the answer that a retry gets."`
	List    listCommand    `cmd:"" help:"List records, for example abandoned operations or the largest records."`
	Resolve resolveCommand `cmd:"" help:"End an abandoned operation, either as executed, with its answer, or as not executed."`
	Forget  forgetCommand  `cmd:"" help:"Remove the record of a key, so that the operation may be executed again."`
	Erase   eraseCommand   `cmd:"" help:"Remove all records of a user."`
	Export  exportCommand  `cmd:"" help:"Print records as JSON lines, with pseudonyms for users, endpoints and keys. They are the same in each export with one IDEMPOTENCY_EXPORT_SECRET."`
	Check   checkCommand   `cmd:"" help:"Report unsafe settings and faults of the store. Run check as the role of the service."`
	Probe   probeCommand   `cmd:"" help:"Test whether a service is idempotent: repeat requests, break connections, kill the process."`
	Stats   statsCommand   `cmd:"" help:"Summarize the store: records by state, abandoned operations, the largest users."`

	Completion kongcompletion.Completion `cmd:"" help:"Print the shell code that completes commands and flags."`
}

const (
	description = `Shows and changes the records of idempotency keys in Redis, PostgreSQL, MySQL, MariaDB, SQLite or DynamoDB.

Credentials come from the environment and are never printed. REDIS_URL and DATABASE_URL are the URLs that services use.
The password for Redis may also be in REDISCLI_AUTH, for PostgreSQL in PGPASSWORD or ~/.pgpass, for MySQL in MYSQL_PWD.
The credentials for DynamoDB come from the usual places of AWS. A Redis URL with master_name asks Sentinel.

Exit status: 0 done or found; 1 no record, nothing listed, findings, or a failed check; 2 wrong usage; 3 the store has
failed, the record cannot be read, or the checks are not complete; 4 not forgotten or not resolved: running, not
abandoned, changed, or not confirmed; or not probed: the address needs --remote.`

	storeHelp = "redis://host:port/0, rediss://, postgres://user@host/database, mysql://user@host/database, sqlite:file, the " +
		"path of an SQLite file, dynamodb://table?region=eu-central-1, or only 'redis', 'postgres', 'mysql', 'sqlite' or " +
		"'dynamodb'. Without a password. Default: REDIS_URL or DATABASE_URL."

	ttlHelp = "How long the record is kept from now: Options.TTL of the service. Default: 24h, or the time left if that is longer."
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
