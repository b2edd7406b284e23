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
	"github.com/idempotency-go/idempotency/client/js"
	"github.com/idempotency-go/idempotency/examples/browser"
	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
)

// paymentService is a service whose origin is not the origin of the page. The counters say how many of the next requests
// meet with each fault.
type paymentService struct {
	chargeCount, requestCount atomic.Int32
	answersToLose             atomic.Int32 // the handler runs, and the answer breaks off
	requestsToFail            atomic.Int32 // the handler answers 503
	requestsToHold            atomic.Int32 // the handler runs, and the answer waits for releaseHeld
	receivedKeys              chan string
	releaseHeld               chan struct{}           // closed to end the held requests
	queuedRefusals            chan *idempotency.Error // answers in place of the handler
}

// newHandler returns the handler of the service, guarded with opts.
func (p *paymentService) newHandler(t *testing.T, opts idempotency.Options) http.Handler {
	t.Helper()
	// Pages with fetch send the key in the header, and forms in a hidden field.
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := keyfrom.New(store, idempotency.SingleUser, opts, keyfrom.Form("idempotency-key"))
	require.NoError(t, err)
	asked, err := idempotency.New(store, idempotency.SingleUser, opts)
	require.NoError(t, err)
	guarded := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.requestsToFail.Add(-1) >= 0 {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		order, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d of %s", p.chargeCount.Add(1), order)
	}))
	mux := http.NewServeMux()
	mux.Handle("GET /payments/status", asked.Status())
	mux.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		p.requestCount.Add(1)
		p.receivedKeys <- r.Header.Get("Idempotency-Key")
		select {
		case refusal := <-p.queuedRefusals:
			idempotency.WriteProblem(w, r, refusal)
			return
		default:
		}
		if p.requestsToHold.Add(-1) >= 0 {
			guarded.ServeHTTP(httptest.NewRecorder(), r)
			<-p.releaseHeld
		}
		if p.answersToLose.Add(-1) >= 0 {
			guarded.ServeHTTP(httptest.NewRecorder(), r)
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half an answer") // because Chromium repeats a request by itself if the answer is empty
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		guarded.ServeHTTP(w, r)
	})
	return mux
}

// The script of a page pays once with a service of another origin, even if an answer is lost, the service fails, the page is
// loaded again, or the service refuses the request.
func TestBrowserPaysOnce(t *testing.T) {
	t.Parallel()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/idempotency.js" {
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = io.WriteString(w, js.Module)
			return
		}
		_, _ = io.WriteString(w, `<!doctype html><html lang="en"><link rel="icon" href="data:,"><body>`+
			`<script type="module">import * as idempotency from '/idempotency.js'; window.idempotency = idempotency</script>`)
	}))
	t.Cleanup(page.Close)
	p := &paymentService{
		receivedKeys: make(chan string, 100), releaseHeld: make(chan struct{}), queuedRefusals: make(chan *idempotency.Error, 1),
	}
	api := httptest.NewServer(browser.CORS(page.URL, p.newHandler(t, idempotency.Options{
		Required: true, KeyInfo: idempotency.KeyInfo{StatusURL: "/payments/status"},
	})))
	t.Cleanup(api.Close)
	t.Cleanup(func() { close(p.releaseHeld) })

	tab := openTab(t, page.URL, desktop)
	tab.awaitCondition(`'idempotency' in window`)
	send := fmt.Sprintf(`idempotency.sendOnce('%s/payments', {amount: %%d})`, api.URL)
	pay := func(amount int) string {
		t.Helper()
		tab.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`delete window.text, void `+send+`.then(
			async (answer) => { window.answer = answer; window.text = answer.status + ' ' + await answer.text() },
			(e) => { window.text = e.message })`, amount)))
		tab.awaitCondition(`'text' in window`)
		return evaluate[string](tab, `window.text`)
	}

	p.answersToLose.Store(1)
	require.Equal(t, `201 charge 1 of {"amount":4200}`, pay(4200))
	require.EqualValues(t, 2, p.requestCount.Load())
	first := <-p.receivedKeys
	require.NoError(t, idempotency.ValidateUUID(first))
	require.Equal(t, first, <-p.receivedKeys)

	p.requestsToFail.Store(1)
	require.Equal(t, `201 charge 2 of {"amount":9900}`, pay(9900), "another order")
	require.NotEqual(t, first, <-p.receivedKeys)
	require.EqualValues(t, 2, p.chargeCount.Load())

	// The user loads the page again after the charge, before the answer has arrived.
	for len(p.receivedKeys) > 0 {
		<-p.receivedKeys
	}
	p.requestsToHold.Store(1)
	tab.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`void `+send, 7)))
	key := <-p.receivedKeys
	require.Eventually(t, func() bool { return p.chargeCount.Load() == 3 }, 20*time.Second, 5*time.Millisecond)
	tab.do(chromedp.Navigate(page.URL))
	tab.awaitCondition(`'idempotency' in window`)
	require.Equal(t, `201 charge 3 of {"amount":7}`, pay(1), "the order that was pending goes first")
	require.Equal(t, key, <-p.receivedKeys)
	require.Equal(t, `201 charge 4 of {"amount":1}`, pay(1))
	require.EqualValues(t, 4, p.chargeCount.Load())
	require.Zero(t, evaluate[int](tab, `sessionStorage.length`))

	// The member "retry" of a refusal decides whether the script repeats the key, whatever the status.
	p.requestCount.Store(0)
	p.queuedRefusals <- &idempotency.Error{Status: http.StatusInternalServerError, Retry: idempotency.RetryNever}
	require.Contains(t, pay(2), `500 {"type":"about:blank"`)
	require.EqualValues(t, 1, p.requestCount.Load())
	p.queuedRefusals <- &idempotency.Error{Status: http.StatusConflict, Retry: idempotency.RetrySameKey}
	require.Equal(t, `201 charge 5 of {"amount":3}`, pay(3), "the refused order is not pending")
	require.EqualValues(t, 3, p.requestCount.Load())

	// The page asks what became of a refused payment.
	p.queuedRefusals <- &idempotency.Error{
		Status: http.StatusConflict, Retry: idempotency.RetryNever, StatusURL: "/payments/status?method=POST&path=/payments",
	}
	require.Contains(t, pay(4), "409 ")
	tab.do(chromedp.Evaluate[chromedp.Void](
		`void idempotency.askStatus(window.answer).then(({ state }) => { window.state = state })`))
	tab.awaitCondition(`window.state === 'never-seen'`)
}

// A page of the allowed origin may send the key and read the headers of the middleware. Pages of other origins may not.
func TestBrowserCORS(t *testing.T) {
	t.Parallel()
	p := &paymentService{receivedKeys: make(chan string, 100)}
	api := browser.CORS("https://shop.example", p.newHandler(t, idempotency.Options{Required: true}))
	for _, test := range []struct {
		name, method, origin string
		wantStatus           int
		wantOrigin           string
	}{
		{"preflight", "OPTIONS", "https://shop.example", 204, "https://shop.example"},
		{"preflight of another origin", "OPTIONS", "https://evil.example", 405, ""},
		{"request", "POST", "https://shop.example", 201, "https://shop.example"},
		{"replay", "POST", "https://shop.example", 201, "https://shop.example"},
		{"replay to another origin", "POST", "https://evil.example", 201, ""},
	} {
		r := httptest.NewRequest(test.method, "/payments", nil)
		r.Header.Set("Origin", test.origin)
		r.Header.Set("Access-Control-Request-Method", "POST")
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		require.Equal(t, test.wantStatus, w.Code, test.name)
		require.Equal(t, test.wantOrigin, w.Header().Get("Access-Control-Allow-Origin"), test.name)
		exposed := w.Header().Get("Access-Control-Expose-Headers")
		require.Equal(t, test.wantOrigin != "", exposed == "Idempotent-Replayed, Retry-After", test.name)
		require.Equal(t, []string{"Origin"}, w.Header().Values("Vary"), test.name)
	}
	require.EqualValues(t, 1, p.chargeCount.Load())
}

// The service carries out a form once, even if the user submits the form twice, and refuses a form without a key.
func TestBrowserForms(t *testing.T) {
	t.Parallel()
	p := &paymentService{receivedKeys: make(chan string, 100)}
	form := p.newHandler(t, idempotency.Options{Required: true})
	for _, test := range []struct {
		name, body string
		wantStatus int
		wantAnswer string
	}{
		{"submitted", "idempotency-key=k1&amount=1", 201, "charge 1 of idempotency-key=k1&amount=1"},
		{"submitted again", "idempotency-key=k1&amount=1", 201, "charge 1 of idempotency-key=k1&amount=1"},
		{"another amount", "idempotency-key=k1&amount=2", 409, "key-reused"},
		{"another key", "idempotency-key=k2&amount=2", 201, "charge 2 of idempotency-key=k2&amount=2"},
		{"without a key", "amount=2", 400, "key-missing"},
		{"with an empty key", "amount=2&idempotency-key=", 400, "key-invalid"},
	} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(test.body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
		w := httptest.NewRecorder()
		form.ServeHTTP(w, r)
		require.Equal(t, test.wantStatus, w.Code, test.name)
		require.Contains(t, w.Body.String(), test.wantAnswer, test.name)
	}
}

// A user clicks twice on the button of a form with a file. Chromium sends two requests with different boundaries, and shows
// the answer to the second request. The handler takes the file once.
func TestBrowserFormWithFileIsClickedTwice(t *testing.T) {
	t.Parallel()
	var uploads, requests atomic.Int32
	boundaries, secondAnswered := make(chan string, 10), make(chan struct{})
	idem, err := keyfrom.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Required: true, Wait: 10 * time.Second}, keyfrom.Form("idempotency-key"))
	require.NoError(t, err)
	guarded := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-secondAnswered: // the second request got an answer during this run of the handler
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
	}))
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
			<form method="post" enctype="multipart/form-data" action="/scans" target="answer">
			<input type="hidden" name="idempotency-key" value="k1"><input name="note" value="a">
			<input type="file" name="scan"></form><iframe name="answer"></iframe>
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

	tab := openTab(t, server.URL, desktop)
	tab.do(chromedp.Evaluate[chromedp.Void](`clickTwice()`))
	require.Eventually(t, func() bool { return len(boundaries) == 2 }, 20*time.Second, 5*time.Millisecond)
	require.NotEqual(t, <-boundaries, <-boundaries)
	tab.awaitCondition(`frames.answer.document?.body?.textContent`)
	require.Equal(t, "upload 1: a page", evaluate[string](tab, `frames.answer.document.body.textContent`))
	require.EqualValues(t, 1, uploads.Load())
}

// Each attempt to send a form with files has a new boundary. A second attempt gets the first answer. The service refuses the
// key with another file, and a form with an empty key.
func TestBrowserFormsWithFiles(t *testing.T) {
	t.Parallel()
	p := &paymentService{receivedKeys: make(chan string, 100)}
	server := httptest.NewServer(p.newHandler(t, idempotency.Options{Required: true}))
	t.Cleanup(server.Close)
	for _, test := range []struct {
		name, key, boundary, file string
		wantStatus                int
		isReplay                  bool
		wantAnswer                string
	}{
		{"submitted", "k1", "first", "a page", 201, false, "charge 1 of --first"},
		{"again, with another boundary", "k1", "second", "a page", 201, true, "charge 1 of --first"},
		{"another file", "k1", "third", "b page", 409, false, "key-reused"},
		{"another key", "k2", "fourth", "b page", 201, false, "charge 2 of --fourth"},
		{"with an empty key", "", "fifth", "a page", 400, false, "key-invalid"},
	} {
		var body strings.Builder
		form := multipart.NewWriter(&body)
		require.NoError(t, form.SetBoundary(test.boundary))
		require.NoError(t, form.WriteField("idempotency-key", test.key))
		part, err := form.CreateFormFile("scan", "scan.txt")
		require.NoError(t, err)
		_, err = io.WriteString(part, test.file)
		require.NoError(t, err)
		require.NoError(t, form.Close())
		resp, err := http.Post(server.URL+"/payments", form.FormDataContentType(), strings.NewReader(body.String()))
		require.NoError(t, err)
		answer, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, test.wantStatus, resp.StatusCode, test.name)
		require.Equal(t, test.isReplay, resp.Header.Get("Idempotent-Replayed") == "true", test.name)
		require.Contains(t, string(answer), test.wantAnswer, test.name)
	}
}
