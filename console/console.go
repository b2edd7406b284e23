// Package console serves web pages on which operators find operations with an unknown outcome, and resolve them.
//
//	admin, err := console.New(store, console.Options{Operator: operatorOf})
//	mux.Handle("/admin/idempotency/", admin)
//
// Give the console the same store as the service. A store of package seal decrypts the answers for the console, and encrypts the
// answers that operators type in. Options.Show decides who may read answers. A console on the inner store of package seal would
// store answers in plain text, and the service would refuse them. The pages need no JavaScript.
//
// Serve the [Console] on the listener for administration, over https. The console asks Options.Operator for the sender of each
// request, and refuses all other requests. Changes are protected as follows:
//
//   - A change is a POST, and a browser cannot send a change from another site (see [http.CrossOriginProtection]).
//   - A change requires a reason. The record keeps operator and reason of a resolution (see package resolve). The log has
//     operator and reason of a forgotten record.
//   - A change is made only if the record is still in the state that the page has shown.
//
// A service refuses a key that a client has reused for a different request. If [Console.Observe] is an Observer of the service,
// the page of an operation shows the number and the times of such requests. With Options.Differences, the page also shows
// which parts of the request differed (see the example of type Parts in package fingerprint).
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
	// Operator returns the name of the person who sends a request, for example the account that a proxy or a session has
	// authenticated. Every change records the name. If Operator returns an error or an empty name, the console refuses the
	// request with 403. Every operator with a name may resolve and forget operations.
	Operator func(*http.Request) (string, error)

	// Show reports whether the sender of a request may see the data of users: user, endpoint and key of operations, header and
	// body of answers. Nil hides the data of users from all operators. All operators see states, times, sizes, status codes, the
	// names of steps, and the notes that services write for operators.
	Show func(*http.Request) bool

	// Differences returns the names of the parts that differ in a request with a reused key, for example the method Differences
	// of Parts in package fingerprint. [Console.Observe] calls Differences. All operators see the names. If Differences is nil,
	// the pages say "not known".
	Differences func(idempotency.Event) []string

	// Resolve has the settings of resolutions. The console also logs forgotten records and errors of the store to
	// Resolve.Logger.
	Resolve resolve.Options
}

// Console is an [http.Handler] that serves the pages. Mount a Console at any path with a trailing slash, with or without
// [http.StripPrefix], because all links are relative and the console looks only at the last element of the path. A Console is
// safe for concurrent use.
type Console struct {
	store       idempotency.Inspector
	resolver    *resolve.Resolver // nil if the store cannot resolve operations
	opts        Options
	originCheck *http.CrossOriginProtection

	mu           sync.Mutex
	recentReuses []reusedRequest // the oldest first, at most maxReuses
}

// New returns a console for the operations in store. The error reports all faults of store and opts. If store is only an
// Inspector and no [idempotency.Resolver], operators can look at operations and forget them, but cannot resolve them.
func New(store idempotency.Inspector, opts Options) (*Console, error) {
	var faults []error
	if store == nil {
		faults = append(faults, errors.New("idempotency: console: store is nil"))
	}
	if opts.Operator == nil {
		faults = append(faults, errors.New("idempotency: console: Operator is nil: every change records the name of an operator"))
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
	return &Console{store: store, resolver: resolver, opts: opts, originCheck: http.NewCrossOriginProtection()}, nil
}

const (
	storeTimeout = 30 * time.Second // for all calls of the store during a request
	maxFormBytes = 4 << 20          // room for an answer of 1 MiB with every byte escaped as %XX
)

// request is a request by an operator. mayShow permits the data of users.
type request struct {
	responseWriter http.ResponseWriter
	httpRequest    *http.Request
	operator       string
	mayShow        bool
}

// pageRoute serves the paths with the same last element.
type pageRoute struct {
	methods []string
	serve   func(*Console, *request)
}

var (
	readMethods  = []string{http.MethodGet, http.MethodHead}
	postMethods  = []string{http.MethodPost}
	routesByName = map[string]pageRoute{
		"":          {readMethods, (*Console).serveList},
		"operation": {readMethods, (*Console).serveStory},
		"style.css": {readMethods, (*Console).serveStyle},
		"search":    {postMethods, (*Console).serveSearch},
		"change":    {postMethods, (*Console).applyChange},
	}
)

// ServeHTTP implements [http.Handler].
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setSecurityHeaders(w.Header())
	operator, err := c.opts.Operator(r)
	req := &request{responseWriter: w, httpRequest: r, operator: strings.TrimSpace(operator)}
	if err != nil || req.operator == "" {
		req.operator = ""
		req.writeRefusal(http.StatusForbidden, "Not allowed", "This console does not know you as an operator.", "")
		return
	}
	req.mayShow = c.opts.Show != nil && c.opts.Show(r)
	_, name := path.Split(r.URL.Path)
	route, ok := routesByName[name]
	switch {
	case !ok:
		req.writeRefusal(http.StatusNotFound, "No such page", "The console has no page of this name.", "")
		return
	case !slices.Contains(route.methods, r.Method):
		w.Header().Set("Allow", strings.Join(route.methods, ", "))
		req.writeRefusal(http.StatusMethodNotAllowed, "Not possible", "This page cannot be asked for in this way.", "")
		return
	case c.originCheck.Check(r) != nil:
		req.writeRefusal(http.StatusForbidden, "Not allowed", "The form was not sent by this console. Nothing was changed.", "")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	req.httpRequest = r.WithContext(ctx)
	route.serve(c, req)
}

// setSecurityHeaders protects the pages from other sites, from caches, and from scripts in stored data. Referrer-Policy is
// same-origin because some browsers omit Origin from a form under no-referrer, and the console would refuse the form.
func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

//go:embed page.html style.css
var assets embed.FS

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"visible": visible.Text, "span": visible.Duration, "ago": formatAge, "statusText": http.StatusText,
}).ParseFS(assets, "page.html"))

func (c *Console) serveStyle(req *request) {
	http.ServeFileFS(req.responseWriter, req.httpRequest, assets, "style.css")
}

// pageData is the data of the template, which leaves out the parts that are nil.
type pageData struct {
	Title    string
	Operator string
	Shows    bool
	Done     string // the sentence that confirms a change
	Fault    string // the reason for a refusal
	Back     string // the address of the page before a refusal
	List     *listPage
	Find     *searchForm
	Story    *storyPage
}

func (req *request) writePage(status int, p pageData) {
	p.Operator, p.Shows = req.operator, req.mayShow
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, p); err != nil {
		http.Error(req.responseWriter, "the page cannot be made", http.StatusInternalServerError)
		return
	}
	req.responseWriter.Header().Set("Content-Type", "text/html; charset=utf-8")
	req.responseWriter.WriteHeader(status)
	_, _ = b.WriteTo(req.responseWriter)
}

// writeRefusal writes a page with the reason for a refusal and a link to backAddress, unless backAddress is empty.
func (req *request) writeRefusal(status int, title, why, backAddress string) {
	req.writePage(status, pageData{Title: title, Fault: why, Back: backAddress})
}

// reportStoreError logs err and writes a page about the failure of the store. The page leaves out the text of err.
func (c *Console) reportStoreError(req *request, err error, back string) {
	if errors.Is(err, errors.ErrUnsupported) {
		req.writeRefusal(http.StatusNotImplemented, "Not possible", "This store cannot do that.", back)
		return
	}
	c.logMessage(req.httpRequest.Context(), slog.LevelError, "idempotency: console", slog.String("error", err.Error()))
	req.writeRefusal(http.StatusServiceUnavailable, "The store has not answered",
		"The store has failed, or was too slow: the log of the service says why. A change that you have asked for may have "+
			"been made.", back)
}

func (c *Console) logMessage(ctx context.Context, level slog.Level, message string, attributes ...slog.Attr) {
	log := c.opts.Resolve.Logger
	if log == nil {
		log = slog.Default()
	}
	log.LogAttrs(ctx, level, message, attributes...)
}

// redirectTo sends the browser to a relative address. An absolute address is impossible because a proxy or StripPrefix may have
// changed the path.
func (req *request) redirectTo(address string) {
	req.responseWriter.Header().Set("Location", address)
	req.responseWriter.WriteHeader(http.StatusSeeOther)
}

// parseForm returns the values of a posted form. If the form is too large or malformed, parseForm answers the request and returns
// ok = false.
func (req *request) parseForm() (form url.Values, ok bool) {
	req.httpRequest.Body = http.MaxBytesReader(req.responseWriter, req.httpRequest.Body, maxFormBytes)
	err := req.httpRequest.ParseForm()
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		req.writeRefusal(http.StatusRequestEntityTooLarge, "Too large",
			fmt.Sprintf("A form has at most %d bytes. Nothing was changed.", maxFormBytes), "./")
		return nil, false
	}
	if err != nil {
		req.writeRefusal(http.StatusBadRequest, "Not readable", "The form cannot be read. Nothing was changed.", "./")
		return nil, false
	}
	return req.httpRequest.PostForm, true
}
