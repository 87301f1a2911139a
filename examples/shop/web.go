package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
)

//go:embed page
var page embed.FS

// routes are the page and what it asks for. Whoever reaches it may press the buttons, but no other site's page in the same browser: that
// could not send ownHeader.
func (l *live) routes() http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // it is in the program
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /live", l.stream)
	act := func(w http.ResponseWriter, r *http.Request, do func() error) {
		if r.Header.Get(ownHeader) == "" {
			http.Error(w, "not from here", http.StatusForbidden)
		} else if err := do(); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	}
	mux.HandleFunc("POST /press/{button}", func(w http.ResponseWriter, r *http.Request) {
		act(w, r, func() error { return l.press(r.Context(), r.PathValue("button")) })
	})
	mux.HandleFunc("POST /turn/{switch}/{how}", func(w http.ResponseWriter, r *http.Request) {
		act(w, r, func() error { return l.turn(r.Context(), r.PathValue("switch"), r.PathValue("how") == "on") })
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

// stream sends what the page shows, from the frames of before on: one event with what does not change, then one for each beat.
func (l *live) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	send := func(event string, data any) error {
		text, err := json.Marshal(data)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, text); err != nil {
			return err
		}
		return out.Flush()
	}
	err := send("about", map[string]any{
		"About": l.about, "Note": l.note, "Rate": l.rate, "Processes": l.processes, "Connections": l.places * l.processes, "Products": l.size.Products,
		"TTL": l.ttl.Seconds(), "Query": l.queryTime.Milliseconds(), "Late": l.late.Milliseconds(),
	})
	for at := -1.0; err == nil; {
		frames, next := l.since(at)
		if len(frames) > 0 {
			at = frames[len(frames)-1].At
			err = send("frames", frames)
		}
		select {
		case <-next:
		case <-r.Context().Done():
			return
		}
	}
}
