package cachedebug

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"unicode"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string

	pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
		"bar": bar, "least": func(k HotKey) float64 { return k.Share - k.Error }, "percent": percent, "quoted": quoted, "visible": visible, "counts": counts, "style": func() template.CSS { return template.CSS(pageCSS) },
	}).Parse(pageHTML))

	// policy lets a browser use the page's own style and nothing else: no script, no other site,
	// no form that is sent elsewhere.
	policy = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'; style-src 'sha256-" + styleHash() + "'"
)

func styleHash() string {
	sum := sha256.Sum256([]byte(pageCSS))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// maxRefresh is the longest refresh, in seconds.
const maxRefresh = 3600

func (h *Handler) page(w http.ResponseWriter, query url.Values, r report) {
	header := w.Header()
	refresh, _ := strconv.Atoi(query.Get("refresh"))
	if refresh > 0 && refresh <= maxRefresh {
		header.Set("Refresh", strconv.Itoa(refresh))
	}
	asJSON := url.Values{"format": {"json"}}
	for _, name := range []string{"cache", "key"} {
		if query.Has(name) {
			asJSON.Set(name, query.Get(name))
		}
	}
	header.Set("Content-Type", "text/html; charset=utf-8")
	_ = pageTemplate.Execute(w, struct {
		report
		Values, HasLog bool
		JSON           template.URL
	}{r, h.o.Values, h.o.Log != nil, template.URL("?" + asJSON.Encode())}) //nolint:gosec // Encode has escaped it
}

// A segment is a share as part of a bar of 1000 units.
type segment struct {
	Outcome string
	X, W    int
}

func bar(shares []share) (segments []segment) {
	x := 0.0
	for _, s := range shares {
		if width := 1000 * s.Share; width > 0 {
			segments = append(segments, segment{s.Outcome, int(x), int(math.Ceil(width))})
			x += width
		}
	}
	return segments
}

func percent(share float64) string {
	if share > 0 && share < 0.0005 {
		return "< 0.1 %"
	}
	return strconv.FormatFloat(100*share, 'f', 1, 64) + " %"
}

// visible escapes text that may come from anybody: characters that a browser does not show, or
// that change the direction of text, are escaped as in Go.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// quoted returns text in quotation marks, escaped and shortened.
func quoted(text string) string {
	const most = 200
	if len(text) > most {
		return strconv.Quote(strings.ToValidUTF8(text[:most], "")) + " …"
	}
	return strconv.Quote(text)
}

// A counter is a field of a Stats, with its name and value.
type counter struct {
	Name  string
	Value any
}

// counts lists the counters of a Stats. Fields of nested structs are named by their path.
func counts(stats any) []counter { return fieldsOf(reflect.ValueOf(stats), "") }

func fieldsOf(v reflect.Value, path string) (all []counter) {
	for i := range v.NumField() {
		field, name := v.Field(i), path+v.Type().Field(i).Name
		switch {
		case !v.Type().Field(i).IsExported():
		case field.Kind() == reflect.Struct:
			all = append(all, fieldsOf(field, name+".")...)
		case field.Kind() == reflect.Slice, field.Kind() == reflect.Array, field.Kind() == reflect.Map, field.Kind() == reflect.Pointer: // in the JSON
		default:
			all = append(all, counter{name, field.Interface()})
		}
	}
	return all
}
