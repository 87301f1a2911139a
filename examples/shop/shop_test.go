package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Without a redis-server there is still something to look at, and the page says how to get one.
func TestWithoutARedisServerASmallOneServes(t *testing.T) {
	t.Setenv("PATH", "")
	size := testScale
	size.processes = 1
	s, err := size.open(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	if !strings.Contains(s.note, "apt-get install redis-server") {
		t.Errorf("the note is %q", s.note)
	}
	for side, f := range s.fleets {
		for id, want := range map[int64]int{hot: http.StatusOK, testScale.size.Products: http.StatusOK, testScale.size.Products + 1: http.StatusNotFound, 1e9: http.StatusNotFound} {
			if r := f.visit(t.Context(), f.next(), id); r.err != nil || r.status != want {
				t.Errorf("%s: product %d: %+v", sideNames[side], id, r)
			}
		}
		if ends := s.expiries(t.Context())[side]; len(ends) == 0 {
			t.Errorf("%s: no product expires", sideNames[side])
		}
	}
}

// The controls are for the page alone: another site's page cannot send the header that they ask for.
func TestControlsRefuseOtherSites(t *testing.T) {
	page := newLive(&stage{scale: testScale}).routes()
	for _, path := range []string{"/press/flood", "/turn/filter/off"} {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		if w.Code != http.StatusForbidden {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}
