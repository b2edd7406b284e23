package examples_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// "go test -run 'Test(Checkout|Console)Page/(mouse|keyboard)' -pictures ../docs" writes the pictures of the checkout and of the console.
var pictures = flag.String("pictures", "", "write pictures of the pages to this directory")

var (
	desktop = chromedp.EmulateViewport(1100, 800)
	phone   = chromedp.EmulateViewport(360, 740, chromedp.EmulateScale(2), chromedp.EmulateMobile, chromedp.EmulateTouch)
)

// visitor is a window of the browser.
type visitor struct {
	t   *testing.T
	ctx context.Context

	mu    sync.Mutex
	wrong []string // what the browser has complained of, apart from connections that broke
}

// chromium is one browser for all tests: each opens windows of its own.
var chromium = sync.OnceValues(func() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, err
	}
	home := filepath.Join(programs, "chromium")
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.Flag("host-resolver-rules", "MAP admin.example 127.0.0.1"),
		chromedp.UserDataDir(filepath.Join(home, "profile")), chromedp.Env("TMPDIR="+home))
	for _, name := range []string{
		"disable-gpu", "disable-quic", "disable-background-networking", "disable-component-update", "disable-sync",
		"hide-scrollbars",
	} {
		flags = append(flags, chromedp.Flag(name, true))
	}
	ctx, end := chromedp.NewExecAllocator(context.Background(), flags...)
	browser, closeBrowser := chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {}))
	endBrowser = func() {
		closeBrowser()
		end() // waits for its end
	}
	return browser, errors.Join(os.MkdirAll(home, 0o700), chromedp.Do(browser))
})

// endBrowser ends the browser if there is one.
var endBrowser = func() {}

// open opens a page in a window of its own. See [servertest.Require].
func open(t *testing.T, url string, emulate ...chromedp.Action[chromedp.Void]) *visitor {
	t.Helper()
	browser, err := chromium()
	servertest.Require(t, err)
	tab, closeTab := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(closeTab)
	ctx, cancel := context.WithTimeout(tab, 2*time.Minute)
	t.Cleanup(cancel)
	v := &visitor{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, func(event any) { v.hear(url, event) }))
	v.do(emulate...)
	v.do(chromedp.Navigate(url))
	return v
}

func prefers(what, value string) chromedp.Action[chromedp.Void] {
	feature := &emulation.MediaFeature{Name: "prefers-" + what, Value: value}
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{feature}})
		return err
	})
}

// hear takes note of errors in the program of the page, of what its policy forbids, and of requests to anybody else.
func (v *visitor) hear(url string, event any) {
	complaint := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		complaint = e.ExceptionDetails.Text
	case *log.EventEntryAdded:
		if e.Entry.Source != log.EntrySourceNetwork {
			complaint = e.Entry.Text
		}
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, url+"/") {
			complaint = "a request to " + e.Request.URL
		}
	}
	if complaint != "" {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.wrong = append(v.wrong, complaint)
	}
}

func (v *visitor) faults() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.wrong
}

func (v *visitor) do(actions ...chromedp.Action[chromedp.Void]) {
	v.t.Helper()
	require.NoError(v.t, chromedp.Do(v.ctx, actions...))
}

// ask evaluates an expression in the page.
func ask[T any](v *visitor, expression string) T {
	v.t.Helper()
	value, err := chromedp.Run(v.ctx, chromedp.Evaluate[T](expression))
	require.NoError(v.t, err)
	return value
}

// await waits until a condition holds in the page.
func (v *visitor) await(condition string) {
	v.t.Helper()
	v.do(chromedp.Poll[chromedp.Void](condition, chromedp.WithPollingInterval(20*time.Millisecond)))
}

func (v *visitor) text(selector string) string {
	v.t.Helper()
	return ask[string](v, `document.querySelector('`+selector+`').textContent`)
}

// requireAccessible looks for what keeps people from using the page: text with little contrast, small buttons, buttons
// without a name, what changes and is not read out, and a page that is wider than the screen. The selectors are of what is
// read out.
func (v *visitor) requireAccessible(readOut ...string) {
	v.t.Helper()
	script, err := os.ReadFile(filepath.Join("testdata", "accessible.js"))
	require.NoError(v.t, err)
	selectors, err := json.Marshal(readOut)
	require.NoError(v.t, err)
	require.Empty(v.t, ask[[]string](v, fmt.Sprintf("(%s)(%s)", script, selectors)))
}

// picture writes what the page looks like, if it is asked for.
func (v *visitor) picture(name string) {
	v.t.Helper()
	if *pictures == "" {
		return
	}
	v.await(`scrollTo(0, 0), document.getAnimations().length === 0`)
	shot, err := chromedp.Run(v.ctx, chromedp.CaptureScreenshot())
	require.NoError(v.t, err)
	picture, err := png.Decode(bytes.NewReader(shot))
	require.NoError(v.t, err)
	file, err := os.Create(filepath.Join(*pictures, name))
	require.NoError(v.t, err)
	defer file.Close()
	small := png.Encoder{CompressionLevel: png.BestCompression}
	require.NoError(v.t, small.Encode(file, picture))
}
