package flight_test

import (
	"context"
	"errors"
	"testing"

	"github.com/levee-go/levee/internal/flight"
)

// Without ErrReentrant these callers wait until their contexts end.
func TestALoadThatAsksForItsOwnKeyGetsAnError(t *testing.T) {
	g, other := newGroup(), newGroup()
	type key struct{}
	loading := g.Loading(t.Context(), "a", "b")
	nested := g.Loading(other.Loading(context.WithValue(loading, key{}, "v"), "x"), "c")
	for name, test := range map[string]struct {
		g    *group
		ctx  context.Context
		id   string
		want error
	}{
		"own key":                           {g, loading, "a", flight.ErrReentrant},
		"own key of a batch":                {g, loading, "b", flight.ErrReentrant},
		"another key":                       {g, loading, "z", nil},
		"own key, by way of another load":   {g, nested, "c", flight.ErrReentrant},
		"the key of the outermost load":     {g, nested, "a", flight.ErrReentrant},
		"the other group's key":             {other, nested, "x", flight.ErrReentrant},
		"the same key in another group":     {other, loading, "a", nil},
		"an outer load's key, other group":  {other, nested, "a", nil},
		"detached":                          {g, flight.Detached(nested), "c", nil},
		"a load within what was detached":   {g, g.Loading(flight.Detached(nested), "d"), "d", flight.ErrReentrant},
		"detached, from the outermost load": {g, g.Loading(flight.Detached(nested), "d"), "e", nil},
		"no load":                           {g, t.Context(), "q", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, err := test.g.Join(test.ctx, test.id, flight.Callers{}, newFlight)
			if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if err == nil {
				c.Flight.Decide()
				c.Flight.Finish("", nil, nil)
			}
		})
	}
}

func TestIsLoading(t *testing.T) {
	g, other := newGroup(), newGroup()
	ctx := other.Loading(g.Loading(t.Context(), "a"), "x")
	for name, test := range map[string]struct {
		ctx  context.Context
		want bool
	}{
		"no load":       {t.Context(), false},
		"another group": {other.Loading(t.Context(), "x"), false},
		"nested":        {ctx, true},
		"detached":      {flight.Detached(ctx), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := g.IsLoading(test.ctx); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestDetachedKeepsTheValuesAndNotTheEnd(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
	cancel()
	detached := flight.Detached(ctx)
	if detached.Value(key{}) != "v" || detached.Err() != nil || detached.Done() != nil {
		t.Errorf("got value %v, error %v, want v and no end", detached.Value(key{}), detached.Err())
	}
}
