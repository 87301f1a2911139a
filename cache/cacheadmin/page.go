package cacheadmin

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf16"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string

	pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(pageCSS) },
	}).Parse(pageHTML))

	// policy lets a browser use the page's own style and nothing else: no script, no other site,
	// no form that is sent elsewhere.
	policy = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'; style-src 'sha256-" + styleHash() + "'"
)

func styleHash() string {
	sum := sha256.Sum256([]byte(pageCSS))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// text returns a as JSON. Keys and errors may contain anything, so characters that are invisible
// or turn the text around are escaped.
func text(a *answer) string {
	result, _ := json.MarshalIndent(a, "", "\t")
	var b strings.Builder
	for _, r := range string(result) {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		}
	}
	return b.String() + "\n"
}

// write sends a page to a browser, and JSON to any other client.
func (h *Handler) write(w http.ResponseWriter, r *http.Request, a *answer) {
	header := w.Header()
	if a.status == http.StatusMethodNotAllowed {
		header.Set("Allow", "GET, HEAD, POST")
	}
	result := text(a)
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		header.Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, result)
		return
	}
	header.Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(a.status)
	shown := struct {
		*answer
		Result string
		OK     bool
	}{answer: a, OK: a.Error == ""}
	if a.Do != page || !shown.OK {
		shown.Result = result
	}
	_ = pageTemplate.Execute(w, shown)
}
