package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// The exit statuses of failures.
const (
	exitFailed        = 1
	exitMisconfigured = 2
)

// runProxy runs the program and returns the exit status. An error is printed as a single line.
func runProxy(args []string, env func(string) (string, bool), stdout, stderr io.Writer) int {
	c, err := parseConfig(args, env)
	switch {
	case errors.Is(err, flag.ErrHelp):
		printUsage(stdout)
		return 0
	case err != nil:
		printError(stderr, err)
		return exitMisconfigured
	case c.showVersion:
		fmt.Fprintln(stdout, programVersion())
		return 0
	case c.runHealthcheck:
		if err := checkAlive(c.adminAddress); err != nil {
			printError(stderr, err)
			return exitFailed
		}
		return 0
	}
	if err := runServer(&c, stdout, stderr); err != nil {
		printError(stderr, err)
		return exitFailed
	}
	return 0
}

// runServer runs the proxy until a signal.
func runServer(c *config, stdout, stderr io.Writer) error {
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	slog.SetDefault(log)
	redis.SetLogger(redisLogger{log})
	signalled, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	context.AfterFunc(signalled, func() {
		stop() // before end, so that a second signal ends the process at any time
		end()
	})

	s, err := newServer(ctx, c, log, stdout)
	if err != nil {
		return err
	}
	return s.serveUntil(ctx)
}

// printError prints the text of err in a single line.
func printError(stderr io.Writer, err error) {
	fmt.Fprintln(stderr, "idempotency-proxy:", strings.ReplaceAll(err.Error(), "\n", "; "))
}

func printUsage(stdout io.Writer) {
	var c config
	flags := c.newFlagSet()
	flags.SetOutput(stdout)
	fmt.Fprintln(stdout, "idempotency-proxy -upstream URL -store URL "+
		"(-user-header NAME | -jwt-key FILE | -jwt-secret FILE | -jwt-jwks URL | -all-callers-are-one-user)")
	fmt.Fprintf(stdout, "Each flag is also an environment variable: -max-body is %s.\n", envName("max-body"))
	flags.PrintDefaults()
}

func programVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := info.Main.Version
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			version += " " + setting.Value
		}
	}
	return version + " " + info.GoVersion
}

// redisLogger passes the messages of the Redis client to the log of the proxy.
type redisLogger struct{ logger *slog.Logger }

func (l redisLogger) Printf(ctx context.Context, format string, args ...any) {
	l.logger.WarnContext(ctx, "redis: "+fmt.Sprintf(format, args...))
}
