package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/idempotency-go/idempotency"
)

// searchFlags select records for list and export.
type searchFlags struct {
	State    []idempotency.State `enum:"running,abandoned,released,completed" help:"Only these states: ${enum}." placeholder:"STATE"`
	User     string              `placeholder:"NAME" help:"Only records of this user."`
	Endpoint string              `placeholder:"TEXT" help:"Only records of this endpoint, such as 'POST /payments'. Redis does not store endpoints."`
	Key      string              `placeholder:"TEXT" help:"Only records with this Idempotency-Key. Redis does not store keys."`
	Since    string              `placeholder:"TIME" help:"Only records that began at TIME or later: 2026-11-29, 2026-11-29T08:00:00Z, or 3h for three hours ago."`
	Before   string              `placeholder:"TIME" help:"Only records that began before TIME."`
}

// newListRequest returns a request for the selected records.
func (f searchFlags) newListRequest(now time.Time) (idempotency.ListRequest, error) {
	since, sinceErr := parseTime("--since", f.Since, now)
	before, beforeErr := parseTime("--before", f.Before, now)
	key := keyFlags{User: f.User, Endpoint: f.Endpoint, Key: f.Key}.parseKey()
	return idempotency.ListRequest{
		States: f.State, User: key.User, Endpoint: key.Endpoint, ID: key.ID, Since: since, Before: before,
	}, errors.Join(sinceErr, beforeErr)
}

// parseTime returns the time that a flag gives: a date or time in UTC or with its zone, or a duration before now. An empty text is
// the zero time.
func parseTime(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.Parse(layout, strings.Replace(text, " ", "T", 1)); err == nil {
			return t, nil
		}
	}
	ago, err := time.ParseDuration(text)
	if err != nil || ago < 0 {
		return time.Time{}, fmt.Errorf("%s: want a time like 2026-11-29T08:00:00Z or 2026-11-29, or a duration like 3h for the time until now",
			flag)
	}
	return now.Add(-ago), nil
}

// errTooSlow ends a request to a store that has made no progress for --timeout.
var errTooSlow = errors.New("the store has made no progress for --timeout")

// scan is a request that reads all records of a store. A scan ends when the program is interrupted, or when the store makes no
// progress for --timeout.
type scan struct {
	ctx, interrupted context.Context
	timer            *time.Timer // ends ctx; reset with each progress
	progress         *scanProgress
	end              func()
}

// newScan begins a scan. On a terminal, newScan says that the store reads all of its records.
func (a *app) newScan() *scan {
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancelCause(interrupted)
	s := &scan{ctx: ctx, interrupted: interrupted, progress: a.newScanProgress()}
	s.timer = time.AfterFunc(a.flags.Timeout, func() { cancel(errTooSlow) })
	s.end = func() {
		s.timer.Stop()
		s.progress.clear()
		cancel(nil)
		stop()
	}
	return s
}

// explainError returns err, the error of the store, with its exit status.
func (s *scan) explainError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errors.ErrUnsupported):
		return failWith(exitUsage, "%w; --operation, or --user, --endpoint and --key together, lead to a record", err)
	case s.interrupted.Err() != nil:
		return failWith(exitUnknown, "interrupted: not all records were read")
	case errors.Is(context.Cause(s.ctx), errTooSlow):
		return fmt.Errorf("%w: %w", errTooSlow, err)
	}
	return err
}

// loadListing returns the records of request, which a store finds by a scan.
func (a *app) loadListing(store *openedStore, request idempotency.ListRequest) (idempotency.Listing, error) {
	scan := a.newScan()
	defer scan.end()
	request.Progress = func(read, total int64) {
		scan.timer.Reset(a.flags.Timeout)
		scan.progress.showCounts(read, total)
	}
	if each := request.Each; each != nil {
		request.Each = func(e idempotency.Entry) error {
			scan.timer.Reset(a.flags.Timeout)
			return each(e)
		}
	}
	listing, err := store.List(scan.ctx, request)
	return listing, scan.explainError(err)
}

// scanProgress is a line on the terminal that says how many records the store has read.
type scanProgress struct {
	app     *app
	isShown bool
}

// newScanProgress shows, on a terminal, that the store reads all records. On a terminal that cannot replace a line, the progress
// is not shown.
func (a *app) newScanProgress() *scanProgress {
	const announcement = "The store reads all of its records. Ctrl-C ends that."
	errors, isFile := a.stderr.(*os.File)
	isTerminal := isFile && a.outIsTerminal && term.IsTerminal(int(errors.Fd()))
	p := &scanProgress{app: a, isShown: isTerminal && bool(a.style)}
	p.showText(announcement)
	if isTerminal && !p.isShown {
		fmt.Fprintln(a.stderr, announcement)
	}
	return p
}

// showCounts shows how many of about total records the store has read. A total of zero is unknown.
func (p *scanProgress) showCounts(read, total int64) {
	of := ""
	if total > 0 {
		of = fmt.Sprintf(" of about %d", max(read, total))
	}
	p.showText(fmt.Sprintf("The store has read %d%s records. Ctrl-C ends that.", read, of))
}

func (p *scanProgress) showText(text string) {
	if p.isShown {
		fmt.Fprint(p.app.stderr, clearLine+text)
	}
}

func (p *scanProgress) clear() { p.showText("") }
