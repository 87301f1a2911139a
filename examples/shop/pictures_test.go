package main

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/gif"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestScreenshots writes the pictures of the docs into the directory that LEVEE_SCREENSHOTS names: "make pictures".
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("LEVEE_SCREENSHOTS")
	if dir == "" {
		t.Skip("LEVEE_SCREENSHOTS names no directory")
	}
	b := browse(t, open(t, fullScale), 1240, 1180)
	wait := func(seconds float64) {
		at := b.last().At
		b.until("time passes", func(f *frame) bool { return f.At >= at+seconds })
	}
	show := func(scheme string) {
		b.scheme(scheme)
		b.size(1240, 800)
		wait(0.7)
		b.size(1240, read[int64](b, `document.documentElement.scrollHeight`))
		wait(0.7)
	}
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil { //nolint:gosec // for everybody
			t.Fatal(err)
		}
	}
	wait(14)
	b.expire("expire-hot")
	wait(6)
	b.expire("expire-all")
	wait(9)
	b.press("flood")
	wait(9)
	b.turn("filter")
	wait(5)
	b.turn("filter")
	wait(5)
	b.press("price")
	wait(6)
	show("light")
	write("shop.png", still(t, b.shot(b.around("body"))))
	for _, scheme := range []string{"light", "dark"} {
		ending := map[string]string{"dark": "-dark"}[scheme]
		show(scheme)
		var shots []image.Image
		size := b.around(".lane").Size()
		lanes := func() image.Rectangle { // a line of text above them may come and go
			at := b.around(".lane").Min
			return image.Rectangle{Min: at, Max: at.Add(size)}
		}
		record := func(length time.Duration) {
			for end := time.Now().Add(length); time.Now().Before(end); {
				next := time.Now().Add(frameTime)
				shots = append(shots, b.shot(lanes()))
				time.Sleep(time.Until(next))
			}
		}
		record(2 * time.Second)
		b.press("stop-redis")
		record(6 * time.Second)
		write("redis-stopped"+ending+".png", still(t, b.shot(lanes())))
		b.press("stop-redis")
		record(3 * time.Second)
		write("redis-stopped"+ending+".gif", moving(t, shots))
	}
	b.silent()
	b.scheme("light")
	b.size(960, 885)
	b.do(chromedp.Navigate(read[string](b, `document.querySelector('a[href$="/debug/levee"]').href`) + fmt.Sprint("?key=", hot)))
	write("debug-page.png", still(t, b.shot(b.around("body"))))
}

const frameTime = 500 * time.Millisecond // the page's beat

// shot is what a part of the page shows.
func (b *browser) shot(where image.Rectangle) image.Image {
	b.Helper()
	data, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Fatal(err)
	}
	all, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		b.Fatal(err)
	}
	part := image.NewRGBA(all.Bounds().Intersect(where))
	draw.Draw(part, part.Bounds(), all, part.Bounds().Min, draw.Src)
	return part
}

// around is the rectangle around all that a selector selects.
func (b *browser) around(selector string) image.Rectangle {
	b.Helper()
	sides := read[[]float64](b, fmt.Sprintf(`(() => {
		const all = [...document.querySelectorAll(%q)].map(one => one.getBoundingClientRect())
		const most = (f, side) => f(...all.map(one => one[side]))
		return [most(Math.min, "left"), most(Math.min, "top"), most(Math.max, "right"), most(Math.max, "bottom")]
	})()`, selector))
	return image.Rect(int(sides[0]), int(sides[1]), int(sides[2])+1, int(sides[3])+1)
}

// inFewColours gives pictures the 255 colours that they have most of, of the thousands that the edges of letters have, and one that
// lets the picture below show. They share one palette, and begin at 0, 0.
func inFewColours(pictures []image.Image) (reduced []*image.Paletted) {
	counts := map[color.Color]int{}
	for _, p := range pictures {
		for y := p.Bounds().Min.Y; y < p.Bounds().Max.Y; y++ {
			for x := p.Bounds().Min.X; x < p.Bounds().Max.X; x++ {
				counts[p.At(x, y)]++
			}
		}
	}
	all := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return cmp.Compare(counts[b], counts[a]) })
	few := append(color.Palette{color.Transparent}, all[:min(len(all), 255)]...)
	nearest := map[color.Color]uint8{}
	for c := range counts {
		nearest[c] = uint8(1 + few[1:].Index(c))
	}
	for _, p := range pictures {
		one := image.NewPaletted(image.Rectangle{Max: p.Bounds().Size()}, few)
		for i := range one.Pix {
			one.Pix[i] = nearest[p.At(p.Bounds().Min.X+i%one.Stride, p.Bounds().Min.Y+i/one.Stride)]
		}
		reduced = append(reduced, one)
	}
	return reduced
}

// still is a picture as a PNG.
func still(t *testing.T, picture image.Image) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, inFewColours([]image.Image{picture})[0]); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// moving shows pictures of one size one after the other, as a GIF. Each has what is not as in the one before it.
func moving(t *testing.T, pictures []image.Image) []byte {
	t.Helper()
	var film gif.GIF
	var before *image.Paletted
	for _, p := range inFewColours(pictures) {
		changed := image.NewPaletted(p.Bounds(), p.Palette)
		for i := range p.Pix {
			if before == nil || before.Pix[i] != p.Pix[i] {
				changed.Pix[i] = p.Pix[i]
			}
		}
		film.Image, film.Delay = append(film.Image, changed), append(film.Delay, int(frameTime/(10*time.Millisecond)))
		film.Disposal = append(film.Disposal, gif.DisposalNone)
		before = p
	}
	film.Delay[len(film.Delay)-1] = 200
	var out bytes.Buffer
	if err := gif.EncodeAll(&out, &film); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
