package examples_test

import (
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/browser"
)

// payments is a service of another origin than the page. It loses answers, as often as it is told.
type payments struct {
	charges, requests, lose, fail, hold atomic.Int32
	keys                                chan string
	held                                chan struct{} // closed to end the requests that are held
	refusals                            chan *idempotency.Error
}

func (p *payments) guarded(t *testing.T, opts idempotency.Options) http.Handler {
	t.Helper()
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	require.NoError(t, err)
	guarded := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.fail.Add(-1) >= 0 {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		order, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d of %s", p.charges.Add(1), order)
	}))
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		p.keys <- r.Header.Get("Idempotency-Key")
		select {
		case refusal := <-p.refusals:
			idempotency.WriteProblem(w, r, refusal)
			return
		default:
		}
		if p.hold.Add(-1) >= 0 {
			guarded.ServeHTTP(httptest.NewRecorder(), r)
			<-p.held
		}
		if p.lose.Add(-1) >= 0 {
			guarded.ServeHTTP(httptest.NewRecorder(), r)
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half an answer") // without it, Chromium sends the request again by itself
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		guarded.ServeHTTP(w, r)
	})
	return mux
}

// The script of a page gets its answer although the first one is lost and the second attempt fails, from another origin.
func TestBrowserPaysOnce(t *testing.T) {
	t.Parallel()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/pay.js" {
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write(browser.PayOnce)
			return
		}
		_, _ = io.WriteString(w, `<!doctype html><html lang="en"><link rel="icon" href="data:,"><body data-done="0">`+
			`<script type="module">import { payOnce } from '/pay.js'; window.payOnce = payOnce</script>`)
	}))
	t.Cleanup(page.Close)
	p := &payments{keys: make(chan string, 100), held: make(chan struct{}), refusals: make(chan *idempotency.Error, 1)}
	api := httptest.NewServer(browser.CORS(page.URL, p.guarded(t, idempotency.Options{Required: true})))
	t.Cleanup(api.Close)
	t.Cleanup(func() { close(p.held) })

	v := visit(t, page.URL, desktop)
	pay := func(amount int) string {
		t.Helper()
		v.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`delete window.answer,
			void payOnce('%s/payments', {amount: %d}).then((a) => { window.answer = a.status + ' ' + a.text },
				(e) => { window.answer = e.message })`, api.URL, amount)))
		v.await(`'answer' in window`)
		return ask[string](v, `window.answer`)
	}

	p.lose.Store(1)
	require.Equal(t, `201 charge 1 of {"amount":4200}`, pay(4200))
	require.EqualValues(t, 2, p.requests.Load())
	first := <-p.keys
	require.NoError(t, idempotency.ValidateUUID(first))
	require.Equal(t, first, <-p.keys)

	p.fail.Store(1)
	require.Equal(t, `201 charge 2 of {"amount":9900}`, pay(9900), "another order")
	require.NotEqual(t, first, <-p.keys)
	require.EqualValues(t, 2, p.charges.Load())

	// The page is loaded again when the card was charged, and before there is an answer.
	for len(p.keys) > 0 {
		<-p.keys
	}
	p.hold.Store(1)
	v.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`void payOnce('%s/payments', {amount: 7})`, api.URL)))
	key := <-p.keys
	require.Eventually(t, func() bool { return p.charges.Load() == 3 }, 20*time.Second, 5*time.Millisecond)
	v.do(chromedp.Navigate(page.URL))
	v.await(`'payOnce' in window`)
	require.Equal(t, `201 charge 3 of {"amount":7}`, pay(1), "the order that was pending goes first")
	require.Equal(t, key, <-p.keys)
	require.Equal(t, `201 charge 4 of {"amount":1}`, pay(1))
	require.EqualValues(t, 4, p.charges.Load())
	require.Empty(t, ask[string](v, `sessionStorage.getItem('pending') ?? ''`))

	// A refusal says whether the key may be sent again, whatever its status.
	p.requests.Store(0)
	p.refusals <- &idempotency.Error{Status: http.StatusInternalServerError, Retry: idempotency.RetryNever}
	require.Contains(t, pay(2), `500 {"type":"about:blank"`)
	require.EqualValues(t, 1, p.requests.Load())
	p.refusals <- &idempotency.Error{Status: http.StatusConflict, Retry: idempotency.RetrySameKey}
	require.Equal(t, `201 charge 5 of {"amount":3}`, pay(3), "the refused order is not pending")
	require.EqualValues(t, 3, p.requests.Load())
}

// What a page of another origin may send and read. Other origins are told nothing.
func TestBrowserCORS(t *testing.T) {
	t.Parallel()
	p := &payments{keys: make(chan string, 100)}
	api := browser.CORS("https://shop.example", p.guarded(t, idempotency.Options{Required: true}))
	for _, test := range []struct {
		name, method, origin string
		status               int
		allowed              string
	}{
		{"preflight", "OPTIONS", "https://shop.example", 204, "https://shop.example"},
		{"preflight of others", "OPTIONS", "https://evil.example", 405, ""},
		{"request", "POST", "https://shop.example", 201, "https://shop.example"},
		{"replay", "POST", "https://shop.example", 201, "https://shop.example"},
		{"replay to others", "POST", "https://evil.example", 201, ""},
	} {
		r := httptest.NewRequest(test.method, "/payments", nil)
		r.Header.Set("Origin", test.origin)
		r.Header.Set("Access-Control-Request-Method", "POST")
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		require.Equal(t, test.status, w.Code, test.name)
		require.Equal(t, test.allowed, w.Header().Get("Access-Control-Allow-Origin"), test.name)
		require.Equal(t, test.allowed != "", w.Header().Get("Access-Control-Expose-Headers") == "Idempotent-Replayed, Retry-After", test.name)
		require.Equal(t, []string{"Origin"}, w.Header().Values("Vary"), test.name)
	}
	require.EqualValues(t, 1, p.charges.Load())
}

// A form that is submitted twice is carried out once. One without a key is refused.
func TestBrowserForms(t *testing.T) {
	t.Parallel()
	p := &payments{keys: make(chan string, 100)}
	form := browser.FormKey(p.guarded(t, browser.FormOptions))
	for _, test := range []struct {
		name, body string
		status     int
		answer     string
	}{
		{"submitted", "idempotency-key=k1&amount=1", 201, "charge 1 of idempotency-key=k1&amount=1"},
		{"again", "idempotency-key=k1&amount=1", 201, "charge 1 of idempotency-key=k1&amount=1"},
		{"changed", "idempotency-key=k1&amount=2", 409, "key-reused"},
		{"another", "idempotency-key=k2&amount=2", 201, "charge 2 of idempotency-key=k2&amount=2"},
		{"without a key", "amount=2", 400, "key-invalid"},
	} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(test.body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
		w := httptest.NewRecorder()
		form.ServeHTTP(w, r)
		require.Equal(t, test.status, w.Code, test.name)
		require.Contains(t, w.Body.String(), test.answer, test.name)
	}
}

// A user clicks twice on the button of a form with a file. Chromium sends two requests, each with a boundary of its own, and
// shows the answer to the second one. The file is taken once.
func TestBrowserFormWithFileIsClickedTwice(t *testing.T) {
	t.Parallel()
	var uploads, requests atomic.Int32
	boundaries, secondAnswered := make(chan string, 10), make(chan struct{})
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, browser.FormOptions)
	require.NoError(t, err)
	guarded := browser.FormKey(idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-secondAnswered: // although this one is at work
		case <-time.After(time.Second):
		}
		file, _, err := r.FormFile("scan")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		defer file.Close()
		scan, _ := io.ReadAll(file)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "upload %d: %s", uploads.Add(1), scan)
	})))
	mux := http.NewServeMux()
	mux.HandleFunc("POST /scans", func(w http.ResponseWriter, r *http.Request) {
		_, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		boundaries <- params["boundary"]
		n := requests.Add(1)
		guarded.ServeHTTP(w, r)
		if n == 2 {
			close(secondAnswered)
		}
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `<!doctype html><html lang="en"><link rel="icon" href="data:,">
			<form method="post" enctype="multipart/form-data" action="/scans?key=k1" target="answer">
			<input name="note" value="a"><input type="file" name="scan"></form><iframe name="answer"></iframe>
			<script>
				const files = new DataTransfer()
				files.items.add(new File(['a page'], 'scan.txt'))
				document.querySelector('[type=file]').files = files.files
				async function clickTwice() { // the browser sends only one request of two clicks at the same moment
					document.forms[0].requestSubmit()
					while (await (await fetch('/arrived')).text() === '0') {}
					document.forms[0].requestSubmit()
				}
			</script>`)
	})
	mux.HandleFunc("GET /arrived", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, requests.Load()) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)

	v := open(t, server.URL, desktop)
	v.do(chromedp.Evaluate[chromedp.Void](`clickTwice()`))
	require.Eventually(t, func() bool { return len(boundaries) == 2 }, 20*time.Second, 5*time.Millisecond)
	require.NotEqual(t, <-boundaries, <-boundaries)
	v.await(`frames.answer.document?.body?.textContent`)
	require.Equal(t, "upload 1: a page", ask[string](v, `frames.answer.document.body.textContent`))
	require.EqualValues(t, 1, uploads.Load())
}

// Each attempt to send a form with files has another boundary. The second one gets the first answer. A form with another file
// is refused, and so is one without a key.
func TestBrowserFormsWithFiles(t *testing.T) {
	t.Parallel()
	p := &payments{keys: make(chan string, 100)}
	server := httptest.NewServer(browser.FormKey(p.guarded(t, browser.FormOptions)))
	t.Cleanup(server.Close)
	for _, test := range []struct {
		name, query, boundary, file string
		status                      int
		replayed                    bool
		answer                      string
	}{
		{"submitted", "?key=k1", "first", "a page", 201, false, "charge 1 of --first"},
		{"again, with another boundary", "?key=k1", "second", "a page", 201, true, "charge 1 of --first"},
		{"another file", "?key=k1", "third", "b page", 409, false, "key-reused"},
		{"another key", "?key=k2", "fourth", "b page", 201, false, "charge 2 of --fourth"},
		{"without a key", "", "fifth", "a page", 400, false, "key-invalid"},
	} {
		var body strings.Builder
		form := multipart.NewWriter(&body)
		require.NoError(t, form.SetBoundary(test.boundary))
		part, err := form.CreateFormFile("scan", "scan.txt")
		require.NoError(t, err)
		_, err = io.WriteString(part, test.file)
		require.NoError(t, err)
		require.NoError(t, form.Close())
		resp, err := http.Post(server.URL+"/payments"+test.query, form.FormDataContentType(), strings.NewReader(body.String()))
		require.NoError(t, err)
		answer, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, test.status, resp.StatusCode, test.name)
		require.Equal(t, test.replayed, resp.Header.Get("Idempotent-Replayed") == "true", test.name)
		require.Contains(t, string(answer), test.answer, test.name)
	}
}
