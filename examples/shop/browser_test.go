package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/examples/internal/servers"
	"github.com/levee-go/levee/internal/dbtest"
	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) {
	childMain()
	redis.SetLogger(servers.Silence{})
	os.Exit(m.Run())
}

// open opens the shop of a scale, and ends it with the test. It returns the page's address. LEVEE_REDIS and LEVEE_POSTGRES, an address
// and a DSN, take real servers.
func open(t *testing.T, size scale) string {
	t.Helper()
	t.Setenv("TMPDIR", shortDir(t))
	t.Setenv("GORACE", race.QuickExit())
	ctx, cancel := context.WithCancel(t.Context())
	address, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- options{size: size, listen: "127.0.0.1:0", redis: os.Getenv("LEVEE_REDIS"), postgres: os.Getenv("LEVEE_POSTGRES")}.serve(ctx, func(_ *stage, a string) { address <- a })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "levee*")); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	select {
	case a := <-address:
		return "http://" + a
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	return ""
}

// shortDir is t.TempDir with a short name: Chromium puts a socket there.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// A browser is a tab with the page of a shop.
type browser struct {
	*testing.T
	ctx     context.Context
	prefers []*emulation.MediaFeature

	mu     sync.Mutex // guards what follows
	errors []string   // of the console
	again  bool       // the server has said 500 to a press that was repeated
}

// browse opens the page in a Chromium, and ends that with the test.
func browse(t *testing.T, address string, width, height int64) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{os.Getenv("LEVEE_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && path == "" {
			path = found
		}
	}
	if path == "" {
		dbtest.Absent(t, "there is no Chromium to test the page in: bash .ci/install-chromium, or set LEVEE_CHROMIUM to the path of one")
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), chromedp.ExecPath(path), chromedp.Flag("headless", true),
		chromedp.Flag("no-sandbox", true), chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true), chromedp.Flag("no-first-run", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.UserDataDir(shortDir(t)), chromedp.WSURLReadTimeout(time.Minute))
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 8*time.Minute)
	t.Cleanup(cancel)
	b := &browser{T: t, ctx: ctx}
	err := chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.errors = append(b.errors, fmt.Sprintf("%s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.ConsoleAPICalledTypeError {
				b.errors = append(b.errors, fmt.Sprint(e.Args))
			}
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError {
				b.errors = append(b.errors, e.Entry.Text)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	call(b, log.Enable, cdp.Empty{})
	b.size(width, height)
	b.do(chromedp.Navigate(address))
	b.until("the page shows numbers", func(f *frame) bool { return f.Sides[plainSide].Total.Asked > 0 })
	return b
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

func call[P, R any](b *browser, command cdp.Command[P, R], params P) {
	b.Helper()
	if _, err := chromedp.Call(b.ctx, command, params); err != nil {
		b.Fatal(err)
	}
}

// size makes the window so large. One as narrow as a telephone is one.
func (b *browser) size(width, height int64) {
	b.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 500})
}

// scheme is "light" or "dark".
func (b *browser) scheme(name string) {
	b.Helper()
	b.prefer("prefers-color-scheme", name)
}

// rest stops the dots, which move with each picture that the screen shows: the user prefers that. Without a graphics card Chromium needs
// more of the processors to draw them than for all else.
func (b *browser) rest() {
	b.Helper()
	b.prefer("prefers-reduced-motion", "reduce")
}

func (b *browser) prefer(name, value string) {
	b.Helper()
	b.prefers = slices.DeleteFunc(b.prefers, func(f *emulation.MediaFeature) bool { return f.Name == name })
	b.prefers = append(b.prefers, &emulation.MediaFeature{Name: name, Value: value})
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: b.prefers})
}

// read evaluates JavaScript.
func read[T any](b *browser, script string) T {
	b.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](script))
	if err != nil {
		b.Fatal(err)
	}
	return value
}

// last is the frame that the page shows.
func (b *browser) last() *frame {
	b.Helper()
	f := &frame{}
	if err := json.Unmarshal([]byte(read[string](b, `JSON.stringify(shop.last || {})`)), f); err != nil {
		b.Fatal(err)
	}
	return f
}

// until waits for a frame of which cond is true.
func (b *browser) until(what string, cond func(f *frame) bool) *frame {
	b.Helper()
	for end := time.Now().Add(40 * time.Second); ; {
		f := b.last()
		if cond(f) {
			return f
		}
		if time.Now().After(end) {
			b.Fatalf("%s: still not so: %+v", what, f)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// during returns what happens while n more visitors come to levee's shop.
func (b *browser) during(n int) (before, after *frame) {
	b.Helper()
	before = b.last()
	after = b.until("visitors come", func(f *frame) bool { return f.Sides[leveeSide].Total.Asked >= before.Sides[leveeSide].Total.Asked+n })
	return before, after
}

// press clicks a button and waits for it to be done.
func (b *browser) press(name string) { b.click(`[data-press="` + name + `"]`) }

// turn clicks a switch and waits until it shows the other state.
func (b *browser) turn(name string) {
	b.Helper()
	button := `[data-turn="` + name + `"]`
	is := `document.querySelector('` + button + `').getAttribute("aria-checked")`
	was := read[string](b, is)
	b.click(button)
	b.until(name+" is switched", func(*frame) bool { return read[string](b, is) != was })
}

// expire presses a button that invalidates until Redis has confirmed that: on a starved machine it does not answer each time in time.
func (b *browser) expire(name string) {
	b.Helper()
	status := ""
	b.until(name+" is confirmed", func(*frame) bool {
		status = b.clicked(`[data-press="` + name + `"]`)
		refused := strings.Contains(status, cache.ErrNotInvalidated.Error())
		b.mu.Lock()
		b.again = b.again || refused
		b.mu.Unlock()
		return !refused
	})
	b.done(name, status)
}

func (b *browser) click(button string) {
	b.Helper()
	b.done(button, b.clicked(button))
}

func (b *browser) done(button, status string) {
	b.Helper()
	if !strings.HasSuffix(status, ": done") {
		b.Fatalf("%s: %s", button, status)
	}
}

// clicked clicks a button, and returns what the page says of it. A click misses where the page moves the button
// at that moment, as it does when it begins to say that the machine is busy: then nothing is under way, and it clicks again.
func (b *browser) clicked(button string) string {
	b.Helper()
	read[string](b, `document.getElementById("status").textContent = ""`)
	status := ""
	b.until(button+" is done", func(*frame) bool {
		if read[bool](b, `document.getElementById("status").textContent === "" && !document.querySelector('`+button+`').hasAttribute("aria-busy")`) {
			b.do(chromedp.Click(chromedp.CSS(button)))
		}
		status = read[string](b, `document.getElementById("status").textContent`)
		return status != ""
	})
	return status
}

// silent fails the test if the console has an error.
func (b *browser) silent() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.errors {
		if !b.again || !strings.Contains(e, "status of 500") {
			b.Errorf("the console says: %s", e)
		}
	}
}

// testScale is over soon. Nobody counts on the clock but where it says so. Thousands of requests whose time is over, each of which
// closes its connection, would keep a busy machine with making new ones for good: so there are hundreds at the most.
var testScale = scale{
	processes: 3, places: 4, size: catalogue{Products: 24, Withdrawn: 20}, rate: 120, ttl: 12 * time.Second,
	queryTime: 40 * time.Millisecond, slow: 500 * time.Millisecond, late: 2 * time.Second, timeout: time.Second, patience: 10 * time.Second, most: 600, beat: 250 * time.Millisecond,
}

func levee(f *frame) *sideFrame   { return &f.Sides[leveeSide] }
func plainOf(f *frame) *sideFrame { return &f.Sides[plainSide] }

// Each button does what it says, and each protection that is switched off makes the difference that it is there for. Each is
// judged by counts: of queries for pages, of answers for visitors, not by how fast this machine is.
func TestEveryButtonAndEverySwitchMakesItsDifference(t *testing.T) {
	b := browse(t, open(t, testScale), 1280, 1300)
	b.rest()
	b.until("the local tier answers", func(f *frame) bool { return levee(f).Total.Local > 100 && plainOf(f).Total.Redis > 100 })
	if text := read[string](b, `document.getElementById("levee-answered").textContent`); text == "–" || text == "0" {
		t.Errorf("the page says that levee answers %s a second", text)
	}

	// Filter and null caching, against the scraper.
	b.press("flood")
	asked := func() (absent, withdrawn int64) {
		before := b.last()
		after := b.until("the scraper asks", func(f *frame) bool { return levee(f).Total.Pages > levee(before).Total.Pages+250 })
		return levee(after).Database.Absent - levee(before).Database.Absent, levee(after).Database.Withdrawn - levee(before).Database.Withdrawn
	}
	// Of five windows of 250 pages the first that is enough is judged, or the last: on a starved machine the first has what was asked
	// for before the switch, and nulls expire within one.
	window := func(enough func(absent, withdrawn int64) bool) (absent, withdrawn int64) {
		for range 5 {
			if absent, withdrawn = asked(); enough(absent, withdrawn) {
				break
			}
		}
		return absent, withdrawn
	}
	asked() // the nulls of the withdrawn products are loaded once
	absentOn, withdrawnOn := window(func(absent, withdrawn int64) bool { return absent+withdrawn < 20 })
	b.turn("filter")
	absentOff, _ := window(func(absent, _ int64) bool { return absent >= 2*absentOn+40 })
	b.turn("filter")
	b.turn("nulls")
	_, withdrawnOff := window(func(_, withdrawn int64) bool { return withdrawn >= 2*withdrawnOn+40 })
	b.turn("nulls")
	t.Logf("queries for 250 pages of the scraper: absent %d, without the filter %d; withdrawn %d, without nulls %d", absentOn, absentOff, withdrawnOn, withdrawnOff)
	if absentOff < 2*absentOn+40 {
		t.Errorf("the filter makes no difference: %d queries for pages that never existed with it, %d without", absentOn, absentOff)
	}
	if withdrawnOff < 2*withdrawnOn+40 {
		t.Errorf("null caching makes no difference: %d queries for withdrawn products with it, %d without", withdrawnOn, withdrawnOff)
	}
	if f := b.last(); plainOf(f).Database.Absent < 100 {
		t.Errorf("the scraper did not reach the plain shop's database: %+v", plainOf(f).Database)
	}
	b.press("flood")

	// The local tier.
	before, after := b.during(100)
	localOn := levee(after).Total.Local - levee(before).Total.Local
	b.turn("local")
	b.during(20) // under way
	before, after = b.during(100)
	localOff, redisOff := levee(after).Total.Local-levee(before).Total.Local, levee(after).Total.Redis-levee(before).Total.Redis
	b.turn("local")
	t.Logf("of 100 answers %d local; without the tier %d, and %d from Redis", localOn, localOff, redisOff)
	if localOn < 40 || localOff > 0 || redisOff < 40 {
		t.Errorf("the local tier makes no difference: %d local with it, %d without and %d from Redis", localOn, localOff, redisOff)
	}

	// Jitter: what was stored together expires together, or not.
	together := func(rounds int, enough float64) (most float64) {
		for range rounds {
			b.expire("expire-all")
			since := b.last().At
			b.until("everything is cached again", func(f *frame) bool {
				all, high := 0, 0
				for _, n := range f.Ends[leveeSide] {
					all, high = all+n, max(high, n)
				}
				if all >= int(testScale.size.Products)*9/10 {
					most = max(most, float64(high)/float64(all))
				}
				return f.At > since+3 || most >= enough
			})
			if most >= enough {
				break
			}
		}
		return most
	}
	spread := together(redistest.Pick(1, 3), 1)
	b.turn("jitter")
	joint := together(3, 0.6)
	b.turn("jitter")
	t.Logf("products that expire in the same second: %.0f %%, without jitter %.0f %%", 100*spread, 100*joint)
	if joint < 0.6 || spread >= 0.6 {
		t.Errorf("jitter makes no difference: %.2f of the products expire in one second with it, %.2f without", spread, joint)
	}

	// The breaker's limit, and the loads of a hot key, with a database that is slow enough for readers to meet.
	b.press("slow-database")
	places := int64(testScale.places * testScale.processes)
	busiest := func(rounds int, enough int64) (most int64) {
		for range rounds {
			b.expire("expire-all")
			since := levee(b.last()).Total.Asked
			b.until("visitors come", func(f *frame) bool {
				most = max(most, levee(f).AtOnce)
				return levee(f).Total.Asked > since+80 || most >= enough
			})
			if most >= enough {
				break
			}
		}
		return most
	}
	b.during(20)
	bounded := busiest(redistest.Pick(2, 5), places+1)
	b.turn("breaker")
	unbounded := busiest(5, places+1)
	b.turn("breaker")
	t.Logf("queries at once: %d, without the breaker's limit %d", bounded, unbounded)
	if bounded > places || unbounded <= places {
		t.Errorf("the breaker makes no difference: %d queries at once with it, %d without, for %d places", bounded, unbounded, places)
	}
	if f := b.last(); plainOf(f).P99 < 400 {
		b.until("a slow database shows", func(f *frame) bool { return plainOf(f).P99 >= 400 })
	}

	b.during(100)
	loads := func() int64 {
		before := b.last()
		for range 3 {
			b.expire("expire-hot")
			b.during(60)
		}
		return levee(b.last()).Database.Hot - levee(before).Database.Hot
	}
	one := loads()
	b.turn("lease")
	b.during(20)
	many := loads()
	b.turn("lease")
	t.Logf("loads of the hot product, expired three times: %d, without flights and leases %d", one, many)
	if one < 3 || many < 2*one+3 {
		t.Errorf("flights and leases make no difference: %d loads with them, %d without", one, many)
	}
	b.press("slow-database")

	// Redis is slow, and gone.
	b.press("slow-redis")
	b.until("a slow Redis shows in the plain shop alone", func(f *frame) bool { return plainOf(f).P50 >= 2000 && levee(f).P50 < 1000 && levee(f).P50 > 0 })
	b.press("slow-redis")
	b.until("Redis is quick again", func(f *frame) bool { return plainOf(f).P50 < 2000 && plainOf(f).Now.Redis > 0 })
	b.press("stop-redis")
	b.until("every process notices", func(f *frame) bool {
		out := 0
		for _, p := range levee(f).Processes {
			if p.Outage {
				out++
			}
		}
		return out == testScale.processes && plainOf(f).Now.Source > 0 && plainOf(f).Now.Redis == 0
	})
	// Those who waited for Redis when it stopped are answered by the database, all within one of these windows or two: the best of
	// five is judged. An error counts in any.
	noticed, local := b.last(), 0
	for range 5 {
		before, after = b.during(100)
		if local = max(local, levee(after).Total.Local-levee(before).Total.Local); local >= 40 {
			break
		}
	}
	if n := levee(after).Total.Errors - levee(noticed).Total.Errors; local < 40 || n > 0 {
		t.Errorf("without Redis %d of 100 visitors are answered by levee's local tier, and %d get an error", local, n)
	}

	// Two processes are killed; the rest goes on, and heal mends all.
	b.press("kill")
	b.press("kill")
	b.until("two of each shop are dead", func(f *frame) bool {
		return read[int](b, `document.querySelectorAll(".processes .dead").length`) == 4
	})
	before, after = b.during(50)
	if levee(after).Total.Answered == levee(before).Total.Answered {
		t.Error("nobody is answered by the process that lives")
	}
	b.press("heal")
	b.until("all is well", func(f *frame) bool {
		well := f.Trouble == trouble{} && f.Protections == allProtections && levee(f).Now.Local > 0 && plainOf(f).Now.Redis > 0
		for _, p := range levee(f).Processes {
			well = well && p.Address != "" && !p.Outage
		}
		return well && read[int](b, `document.querySelectorAll(".processes .alive").length`) == 6
	})

	b.press("price")
	f := b.until("every process serves the new price", func(f *frame) bool {
		served := 0
		if f.Price == nil {
			return false
		}
		for _, side := range f.Price.Served {
			for _, ms := range side {
				if ms >= 0 {
					served++
				}
			}
		}
		return served == sides*testScale.processes
	})
	b.until("the table shows it", func(*frame) bool {
		return read[int](b, `[...document.querySelectorAll("#price td")].filter((c) => c.dataset.served >= 0).length`) == sides*testScale.processes
	})
	t.Logf("the new price was served after %v ms", f.Price.Served)
	b.silent()
}

// The page is for everybody: by keyboard alone, on a telephone, in the dark, with letters that stand out.
func TestThePageIsUsable(t *testing.T) {
	address := open(t, testScale)
	checkThatItWaits(t, address)
	b := browse(t, address, 1280, 1300)
	b.checkThatItIsStarved()
	b.checkTheKeyboard()
	b.rest()
	b.checkTheContrasts()
	b.checkATelephone()
	b.silent()
}

// Until the first numbers came the page was empty.
func checkThatItWaits(t *testing.T, address string) {
	t.Helper()
	response, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"connecting…", "waiting for the first numbers…"} {
		if !strings.Contains(string(page), text) {
			t.Errorf("the page before its first event does not say %q", text)
		}
	}
}

// On a busy machine levee's curves looked bad without a word.
func (b *browser) checkThatItIsStarved() {
	b.Helper()
	if text := read[string](b, `document.body.innerText`); strings.Contains(text, "connecting…") || strings.Contains(text, "waiting for the first") {
		b.Error("the page has numbers, and still waits")
	}
	for stalled, want := range map[string]string{"300": "300 ms", "20": ""} {
		says := read[string](b, `shop.frames.forEach((f) => f.Stalled = `+stalled+`);
			dispatchEvent(new Event("resize"));
			document.getElementById("starved").hidden ? "" : document.getElementById("starved").textContent`)
		if !strings.Contains(says, want) || want == "" && says != "" {
			b.Errorf("a shop that stood still for %s ms says %q", stalled, says)
		}
	}
}

func (b *browser) checkTheKeyboard() {
	b.Helper()
	reached := map[string]bool{}
	for range 30 {
		b.do(chromedp.KeyEvent(kb.Tab))
		reached[read[string](b, `document.activeElement.dataset.press || document.activeElement.dataset.turn || ""`)] = true
	}
	for name := range buttons {
		if !reached[name] {
			b.Errorf("the button %q cannot be reached by keyboard", name)
		}
	}
	for name := range switches {
		if !reached[name] {
			b.Errorf("the switch %q cannot be reached by keyboard", name)
		}
	}
	b.do(chromedp.Focus(chromedp.CSS(`[data-turn="filter"]`)), chromedp.KeyEvent(" "))
	b.until("the space bar switches", func(f *frame) bool { return !f.Protections.Filter })
	b.do(chromedp.Focus(chromedp.CSS(`[data-press="flood"]`)), chromedp.KeyEvent(kb.Enter))
	b.until("enter presses", func(f *frame) bool { return f.Trouble.Flood })
}

func (b *browser) checkTheContrasts() {
	b.Helper()
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		time.Sleep(2 * testScale.beat) // drawn anew
		for _, found := range read[[]string](b, contrasts) {
			b.Errorf("%s: %s", scheme, found)
		}
	}
}

func (b *browser) checkATelephone() {
	b.Helper()
	b.size(390, 844)
	time.Sleep(2 * testScale.beat)
	if width := read[int](b, `document.documentElement.scrollWidth`); width > 390 {
		b.Errorf("the page is %d px wide on a telephone of 390", width)
	}
	for _, found := range read[[]string](b, `[...document.querySelectorAll("button")].filter((e) => {
		const r = e.getBoundingClientRect();
		return r.left < 0 || r.right > innerWidth || r.height < 32 || r.width < 32;
	}).map((e) => e.textContent)`) {
		b.Errorf("the button %q is too small or beyond the edge of a telephone", found)
	}
	for _, found := range read[[]string](b, `[...document.querySelectorAll("svg text")].filter((e) => {
		const r = e.getBoundingClientRect(), s = e.ownerSVGElement.getBoundingClientRect();
		return r.left < s.left - 2 || r.right > s.right + 2;
	}).map((e) => e.textContent)`) {
		b.Errorf("%q is cut off on a telephone", found)
	}
}

// contrasts lists the texts whose contrast is below WCAG's AA: 4.5, or 3 for large ones.
const contrasts = `(() => {
	const parse = (c) => (c.match(/[\d.]+/g) || []).map(Number);
	const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const back = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0.99) return c; } return [255, 255, 255]; };
	const bad = new Set();
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length) continue;
		const s = getComputedStyle(e), svg = e instanceof SVGElement, a = light(parse(svg ? s.fill : s.color).slice(0, 3)), b = light(back(svg ? e.ownerSVGElement : e).slice(0, 3));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), size = parseFloat(s.fontSize), large = size >= 24 || size >= 18.6 && s.fontWeight >= 700;
		if (ratio < (large ? 3 : 4.5)) bad.add(ratio.toFixed(2) + " for " + JSON.stringify(e.textContent.trim().slice(0, 40)));
	}
	return [...bad];
})()`
