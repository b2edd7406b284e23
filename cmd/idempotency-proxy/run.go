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

// The exit statuses, beside 0.
const (
	exitFailed        = 1
	exitMisconfigured = 2
)

// run is the program. If it fails, it says why in one line.
func run(args []string, env func(string) (string, bool), stdout, stderr io.Writer) int {
	c, err := parse(args, env)
	switch {
	case errors.Is(err, flag.ErrHelp):
		usage(stdout)
		return 0
	case err != nil:
		complain(stderr, err)
		return exitMisconfigured
	case c.version:
		fmt.Fprintln(stdout, version())
		return 0
	case c.healthcheck:
		if err := lives(c.admin); err != nil {
			complain(stderr, err)
			return exitFailed
		}
		return 0
	}
	if err := serve(&c, stdout, stderr); err != nil {
		complain(stderr, err)
		return exitFailed
	}
	return 0
}

// serve runs the proxy until a signal ends it.
func serve(c *config, stdout, stderr io.Writer) error {
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	slog.SetDefault(log)
	redis.SetLogger(redisLogger{log})
	signalled, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	context.AfterFunc(signalled, func() {
		stop() // first: a second signal then ends the process, whenever it comes
		end()
	})

	s, err := newServer(ctx, c, log, stdout)
	if err != nil {
		return err
	}
	return s.serve(ctx)
}

// complain prints all that an error says in one line.
func complain(stderr io.Writer, err error) {
	fmt.Fprintln(stderr, "idempotency-proxy:", strings.ReplaceAll(err.Error(), "\n", "; "))
}

func usage(stdout io.Writer) {
	var c config
	flags := c.flags()
	flags.SetOutput(stdout)
	fmt.Fprintln(stdout, "idempotency-proxy -upstream URL -store URL "+
		"(-user-header NAME | -jwt-key FILE | -jwt-secret FILE | -jwt-jwks URL | -all-callers-are-one-user)")
	fmt.Fprintf(stdout, "Each flag is also an environment variable: -max-body is %s.\n", envName("max-body"))
	flags.PrintDefaults()
}

func version() string {
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

// redisLogger has the client of Redis log as everything else does.
type redisLogger struct{ log *slog.Logger }

func (l redisLogger) Printf(ctx context.Context, format string, args ...any) {
	l.log.WarnContext(ctx, "redis: "+fmt.Sprintf(format, args...))
}
