package main

import (
	"context"
	"database/sql"
	"errors"
	"html/template"
	"net/http"
	"strconv"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
)

// A shop is what a service needs of its cache: the plain one is in plain.go, that of levee in levee.go.
type shop interface {
	Product(ctx context.Context, id int64) (answer, error)
	SetPrice(ctx context.Context, id, cents int64) error
	Expire(ctx context.Context, id int64) error // id 0: everything
}

// An answer is a product and where it came from: "local", "filter", "redis" or "source".
type answer struct {
	Product
	tier  string
	stale bool
}

// A service serves the pages of a shop.
type service struct{ shop shop }

var productPage = template.Must(template.New("product").Funcs(template.FuncMap{
	"euros": func(cents int64) string { return strconv.FormatFloat(float64(cents)/100, 'f', 2, 64) },
}).Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{.Name}}</title></head>
<body><h1>{{.Name}}</h1><p>{{euros .Cents}} €</p></body></html>
`))

// routes are the pages of the shop.
func (s *service) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /product/{id}", s.product)
	mux.HandleFunc("POST /product/{id}/price", s.setPrice)
}

func (s *service) product(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	p, err := s.shop.Product(r.Context(), id)
	w.Header().Set("X-Tier", p.tier) // for the charts
	if p.stale {
		w.Header().Set("X-Stale", "1")
	}
	switch {
	case errors.Is(err, cache.ErrNotFound), errors.Is(err, sql.ErrNoRows):
		http.NotFound(w, r)
	case errors.Is(err, cache.ErrOverloaded), errors.Is(err, breaker.ErrOpen):
		http.Error(w, "too busy", http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, "it did not work", http.StatusInternalServerError)
	default:
		w.Header().Set("X-Price", strconv.FormatInt(p.Cents, 10))
		_ = productPage.Execute(w, p.Product)
	}
}

func (s *service) setPrice(w http.ResponseWriter, r *http.Request) {
	id, err1 := strconv.ParseInt(r.PathValue("id"), 10, 64)
	cents, err2 := strconv.ParseInt(r.FormValue("cents"), 10, 64)
	if err1 != nil || err2 != nil || cents < 0 {
		http.Error(w, "cents must be a number", http.StatusBadRequest)
		return
	}
	if err := s.shop.SetPrice(r.Context(), id, cents); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
