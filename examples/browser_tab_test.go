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
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// picturesDir is the value of -pictures. The screenshots of the checkout and of the console in ../docs are written by
// "go test -run 'Test(Checkout|Console)Page/(mouse|keyboard)' -pictures ../docs".
var picturesDir = flag.String("pictures", "", "write pictures of the pages to this directory")

var (
	desktop = chromedp.EmulateViewport(1100, 800)
	dark    = setPreference("color-scheme", "dark")
	phone   = chromedp.EmulateViewport(360, 740, chromedp.EmulateScale(2), chromedp.EmulateMobile, chromedp.EmulateTouch)
)

// browserTab is a tab of the browser, with a page.
type browserTab struct {
	t           *testing.T
	ctx         context.Context
	runsScripts bool // false if the tab was opened by openWithoutScripts

	mu         sync.Mutex
	complaints []string // errors of the page, without broken connections
}

// startBrowser starts Chromium at the first call. All tests share the browser, and each test opens new tabs.
var startBrowser = sync.OnceValues(func() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, err
	}
	home := filepath.Join(programsDir, "chromium")
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
		end() // waits until the process has ended
	}
	return browser, errors.Join(os.MkdirAll(home, 0o700), chromedp.Do(browser))
})

// endBrowser ends the browser if startBrowser has started the browser.
var endBrowser = func() {}

// openTab opens the page at url in a new tab, after the actions in emulate. Without Chromium, the test is skipped or fails
// as [servertest.Require] describes.
func openTab(t *testing.T, url string, emulate ...chromedp.Action[chromedp.Void]) *browserTab {
	t.Helper()
	browser, err := startBrowser()
	servertest.Require(t, err)
	target, closeTab := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(closeTab)
	ctx, cancel := context.WithTimeout(target, 2*time.Minute)
	t.Cleanup(cancel)
	tab := &browserTab{t: t, ctx: ctx, runsScripts: true}
	require.NoError(t, chromedp.Listen(ctx, func(event any) { tab.recordComplaint(url, event) }))
	tab.do(emulate...)
	tab.do(chromedp.Navigate(url))
	return tab
}

// openWithoutScripts is openTab for a page that may not run scripts. The test can still evaluate expressions.
func openWithoutScripts(t *testing.T, url string, emulate ...chromedp.Action[chromedp.Void]) *browserTab {
	t.Helper()
	tab := openTab(t, url, append(emulate, allowScripts(false))...)
	tab.runsScripts = false
	return tab
}

func allowScripts(allowed bool) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, emulation.SetScriptExecutionDisabled,
			emulation.SetScriptExecutionDisabledParams{Value: !allowed})
		return err
	})
}

// permitTimers lets the test use timers in the page until forbid is called: without scripts, a page has no timers.
func (tab *browserTab) permitTimers() (forbid func()) {
	tab.t.Helper()
	if tab.runsScripts {
		return func() {}
	}
	tab.do(allowScripts(true))
	return func() { tab.do(allowScripts(false)) }
}

// runFirst has each page of the tab run script before the scripts of the page.
func runFirst(script string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, page.AddScriptToEvaluateOnNewDocument,
			page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return err
	})
}

// setPreference sets the media feature "prefers-" + name to value.
func setPreference(name, value string) chromedp.Action[chromedp.Void] {
	feature := &emulation.MediaFeature{Name: "prefers-" + name, Value: value}
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{feature}})
		return err
	})
}

// recordComplaint records exceptions in the scripts of the page, violations of the security policy, and requests to other
// origins than url.
func (tab *browserTab) recordComplaint(url string, event any) {
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
		tab.mu.Lock()
		defer tab.mu.Unlock()
		tab.complaints = append(tab.complaints, complaint)
	}
}

func (tab *browserTab) listComplaints() []string {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	return tab.complaints
}

func (tab *browserTab) do(actions ...chromedp.Action[chromedp.Void]) {
	tab.t.Helper()
	require.NoError(tab.t, chromedp.Do(tab.ctx, actions...))
}

// evaluate returns the value of an expression in the page.
func evaluate[T any](tab *browserTab, expression string) T {
	tab.t.Helper()
	value, err := chromedp.Run(tab.ctx, chromedp.Evaluate[T](expression))
	require.NoError(tab.t, err)
	return value
}

// awaitCondition waits until the condition, an expression, is true in the page.
func (tab *browserTab) awaitCondition(condition string) {
	tab.t.Helper()
	defer tab.permitTimers()()
	tab.do(chromedp.Poll[chromedp.Void](condition, chromedp.WithPollingInterval(20*time.Millisecond)))
}

// readText returns the text of the first element that selector matches.
func (tab *browserTab) readText(selector string) string {
	tab.t.Helper()
	return evaluate[string](tab, `document.querySelector('`+selector+`').textContent`)
}

// clickElement clicks on the element that selector matches.
func (tab *browserTab) clickElement(selector string) {
	tab.t.Helper()
	tab.do(chromedp.Click(chromedp.CSS(selector)))
}

// tapElement taps on the element that selector matches.
func (tab *browserTab) tapElement(selector string) {
	tab.t.Helper()
	tab.do(chromedp.Tap(chromedp.CSS(selector)))
}

// reachElement moves the focus to an element with the Tab key, requires that the focus is visible, and presses Enter.
func (tab *browserTab) reachElement(selector string) {
	tab.t.Helper()
	there := fmt.Sprintf(`document.activeElement === document.querySelector(%q)`, selector)
	for range 200 {
		if evaluate[bool](tab, there) {
			break
		}
		tab.do(chromedp.KeyEvent(kb.Tab))
	}
	require.True(tab.t, evaluate[bool](tab, there), "Tab does not lead to %s", selector)
	outline := evaluate[string](tab, `getComputedStyle(document.activeElement).outlineStyle`)
	require.Equal(tab.t, "solid", outline, "the focus is visible")
	tab.do(pressEnter)
}

// pressEnter presses Enter as a keyboard does: if a link moves the focus to a field, the same press does not send the form.
var pressEnter = chromedp.KeyEvent(kb.Enter, func(event *input.DispatchKeyEventParams) {
	if event.Type == kb.KeyDown {
		event.Type = kb.KeyRawDown
	}
})

// requireAccessible fails if axe-core finds a fault in the page as it is, such as text with little contrast or a field without a
// name, or testdata/accessible.js does. liveRegions are the selectors of the parts that a screen reader must announce.
func (tab *browserTab) requireAccessible(liveRegions ...string) {
	tab.t.Helper()
	axe, err := installAxe()
	servertest.Require(tab.t, err)
	tab.awaitCondition(`document.getAnimations().length === 0`) // a row that fades in has little contrast
	defer tab.permitTimers()()
	tab.do(chromedp.Evaluate[chromedp.Void](axe + `; undefined`))
	faults, err := chromedp.Run(tab.ctx, chromedp.Evaluate[[]string](runAxe, chromedp.EvalAwaitPromise))
	require.NoError(tab.t, err)
	require.Empty(tab.t, faults)

	script, err := os.ReadFile(filepath.Join("testdata", "accessible.js"))
	require.NoError(tab.t, err)
	selectors, err := json.Marshal(liveRegions)
	require.NoError(tab.t, err)
	require.Empty(tab.t, evaluate[[]string](tab, fmt.Sprintf("(%s)(%s)", script, selectors)))
}

// runAxe is an expression for what axe-core finds, and for what it leaves to people.
const runAxe = `axe.run(document, { preload: false, rules: { 'target-size': { enabled: true } } }).then((found) =>
	[...found.violations, ...found.incomplete].flatMap(({ id, help, nodes }) =>
		nodes.map(({ html, any }) => id + ': ' + help + ': ' + html + ' ' + (any[0]?.message ?? ''))))`

// installAxe installs axe-core through npm at the first call, and returns the script.
var installAxe = sync.OnceValues(func() (string, error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", err
	}
	directory := filepath.Join(programsDir, "axe")
	if err := os.CopyFS(directory, os.DirFS(filepath.Join("testdata", "axe"))); err != nil {
		return "", err
	}
	install := exec.Command(npm, "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = directory
	if output, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}
	script, err := os.ReadFile(filepath.Join(directory, "node_modules", "axe-core", "axe.min.js"))
	return string(script), err
})

// savePicture writes a screenshot of the page to picturesDir, if the flag is set.
func (tab *browserTab) savePicture(name string) {
	tab.t.Helper()
	if *picturesDir == "" {
		return
	}
	tab.awaitCondition(`scrollTo(0, 0), document.activeElement.blur(), document.getAnimations().length === 0`)
	shot, err := chromedp.Run(tab.ctx, chromedp.CaptureScreenshot())
	require.NoError(tab.t, err)
	picture, err := png.Decode(bytes.NewReader(shot))
	require.NoError(tab.t, err)
	file, err := os.Create(filepath.Join(*picturesDir, name))
	require.NoError(tab.t, err)
	defer file.Close()
	small := png.Encoder{CompressionLevel: png.BestCompression}
	require.NoError(tab.t, small.Encode(file, picture))
}
