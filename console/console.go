// Package console is a web page on which operators find operations whose outcome is unknown, and end them.
//
//	admin, err := console.New(store, console.Options{Operator: operatorOf})
//	mux.Handle("/admin/idempotency/", admin)
//
// Give it the store that the service itself uses. If that is one of package seal, it opens answers, and seals those that an
// operator gives. Options.Show decides who may read them. Do not give it the inner store: the service refuses
// what was put there in the clear. The pages need no JavaScript.
//
// A [Console] belongs on the listener for administration, over https. It asks Options.Operator who sends a request, and
// does nothing for anybody else. Changes come by POST. A browser cannot send them from another site, see [http.CrossOriginProtection]. Each has
// a reason, and is made only if the operation is still what the page has shown. A resolution leaves operator and reason in
// the record, see package resolve; that a record was forgotten is logged.
//
// A customer may be told that a key was reused. If [Console.Observe] is an Observer of the service, the operation's page shows
// how often and when. With Options.Differences, it also shows which parts of the request differed, see the example of type
// Parts in package fingerprint.
package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/resolve"
)

// Options are the settings of a [Console]. Only Operator is required.
type Options struct {
	// Operator returns the name of the person who sends a request, such as an account that a proxy or a session vouches
	// for. It is written into every change. If it returns an error, or no name, the request is refused with 403. Whoever has
	// a name may resolve and forget.
	Operator func(*http.Request) (string, error)

	// Show reports whether the operator who sends a request may see what belongs to users: user, endpoint and key of
	// operations, header and body of answers. Nil means that nobody may. Everybody sees the rest: states, times, sizes,
	// status codes, the names of steps, and notes, which services write for operators.
	Show func(*http.Request) bool

	// Differences returns the names of what differs in a request that [Console.Observe] is told of, such as
	// the method Differences of Parts in package fingerprint. Everybody sees them. Nil means that the names are not known.
	Differences func(idempotency.Event) []string

	// Resolve are the settings of resolutions. Its Logger is told of records that are forgotten, too, and of errors of the
	// store.
	Resolve resolve.Options
}

// Console is an [http.Handler] that serves the console. Mount it at any path that ends with a slash, with or without
// [http.StripPrefix]: all links are relative, and only the last element of the path counts. It is safe for concurrent
// use.
type Console struct {
	store    idempotency.Inspector
	resolver *resolve.Resolver // nil: the store is none
	opts     Options
	origins  *http.CrossOriginProtection

	mu     sync.Mutex
	reuses []reuse // the newest one last
}

// New returns a console for the operations of a store. It reports every fault at once. If the store is no
// [idempotency.Resolver], operations can be looked at and forgotten, and not resolved.
func New(store idempotency.Inspector, opts Options) (*Console, error) {
	var faults []error
	if store == nil {
		faults = append(faults, errors.New("idempotency: console: no store"))
	}
	if opts.Operator == nil {
		faults = append(faults, errors.New("idempotency: console: no Operator, who is written into every change"))
	}
	resolver, err := resolve.New(store, opts.Resolve)
	for _, fault := range idempotency.Findings(err) {
		if !errors.Is(fault, errors.ErrUnsupported) {
			faults = append(faults, fault)
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return &Console{store: store, resolver: resolver, opts: opts, origins: http.NewCrossOriginProtection()}, nil
}

const (
	patience = 30 * time.Second // for the store, with each request
	maxForm  = 4 << 20          // bytes; an answer of 1 MiB fits, however it is escaped
)

// visit is a request, and who has sent it.
type visit struct {
	w        http.ResponseWriter
	r        *http.Request
	operator string
	shows    bool
}

// route is what the last element of a path leads to.
type route struct {
	methods []string
	serve   func(*Console, *visit)
}

var (
	reading = []string{http.MethodGet, http.MethodHead}
	posting = []string{http.MethodPost}
	routes  = map[string]route{
		"":          {reading, (*Console).list},
		"operation": {reading, (*Console).story},
		"style.css": {reading, (*Console).style},
		"search":    {posting, (*Console).search},
		"change":    {posting, (*Console).change},
	}
)

// ServeHTTP implements [http.Handler].
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	protect(w.Header())
	operator, err := c.opts.Operator(r)
	v := &visit{w: w, r: r, operator: strings.TrimSpace(operator)}
	if err != nil || v.operator == "" {
		v.operator = ""
		v.refuse(http.StatusForbidden, "Not allowed", "This console does not know you as an operator.", "")
		return
	}
	v.shows = c.opts.Show != nil && c.opts.Show(r)
	_, name := path.Split(r.URL.Path)
	route, ok := routes[name]
	switch {
	case !ok:
		v.refuse(http.StatusNotFound, "No such page", "The console has no page of this name.", "")
		return
	case !slices.Contains(route.methods, r.Method):
		w.Header().Set("Allow", strings.Join(route.methods, ", "))
		v.refuse(http.StatusMethodNotAllowed, "Not possible", "This page cannot be asked for in this way.", "")
		return
	case c.origins.Check(r) != nil:
		v.refuse(http.StatusForbidden, "Not allowed", "The form was not sent by this console. Nothing was changed.", "")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	v.r = r.WithContext(ctx)
	route.serve(c, v)
}

// protect sets what keeps other sites, caches and stored script away from the pages. The referrer is there for the
// console itself: with none, some browsers send a form without its origin, and it would be refused.
func protect(h http.Header) {
	h.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

//go:embed page.html style.css
var files embed.FS

var templates = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"visible": visible.Text, "span": visible.Duration, "ago": ago, "statusText": http.StatusText,
}).ParseFS(files, "page.html"))

func (c *Console) style(v *visit) { http.ServeFileFS(v.w, v.r, files, "style.css") }

// page is what the template shows.
type page struct {
	Title    string
	Operator string
	Shows    bool
	Done     string // what was changed
	Fault    string // what was not, and why
	Back     string // where to go after a refusal
	List     *list
	Find     *find
	Story    *story
}

func (v *visit) write(status int, p page) {
	p.Operator, p.Shows = v.operator, v.shows
	var b bytes.Buffer
	if err := templates.Execute(&b, p); err != nil {
		http.Error(v.w, "the page cannot be made", http.StatusInternalServerError)
		return
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_, _ = b.WriteTo(v.w)
}

// refuse writes a page that says why there is no other.
func (v *visit) refuse(status int, title, why, back string) {
	v.write(status, page{Title: title, Fault: why, Back: back})
}

// fail writes a page about an error of the store, which is for the log.
func (c *Console) fail(v *visit, err error, back string) {
	if errors.Is(err, errors.ErrUnsupported) {
		v.refuse(http.StatusNotImplemented, "Not possible", "This store cannot do that.", back)
		return
	}
	c.log(v.r.Context(), slog.LevelError, "idempotency: console", slog.String("error", err.Error()))
	v.refuse(http.StatusServiceUnavailable, "The store has not answered",
		"The store has failed, or was too slow: the log of the service says why. A change that you have asked for may have "+
			"been made.", back)
}

func (c *Console) log(ctx context.Context, level slog.Level, message string, attributes ...slog.Attr) {
	log := c.opts.Resolve.Logger
	if log == nil {
		log = slog.Default()
	}
	log.LogAttrs(ctx, level, message, attributes...)
}

// see leads to another page. The address is relative, because nobody here knows the path that the browser has asked for.
func (v *visit) see(address string) {
	v.w.Header().Set("Location", address)
	v.w.WriteHeader(http.StatusSeeOther)
}

// form returns what a form has sent. If that cannot be read, it says so to the browser.
func (v *visit) form() (form url.Values, ok bool) {
	v.r.Body = http.MaxBytesReader(v.w, v.r.Body, maxForm)
	err := v.r.ParseForm()
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		v.refuse(http.StatusRequestEntityTooLarge, "Too large",
			fmt.Sprintf("A form has at most %d bytes. Nothing was changed.", maxForm), "./")
		return nil, false
	}
	if err != nil {
		v.refuse(http.StatusBadRequest, "Not readable", "The form cannot be read. Nothing was changed.", "./")
		return nil, false
	}
	return v.r.PostForm, true
}
