package main

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// Without a redis-server there is still something to look at, and the page says how to get one.
func TestWithoutARedisServerASmallOneServes(t *testing.T) {
	t.Setenv("PATH", "")
	s, err := testScale.open(t.Context(), "", "")
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
	address := open(t, testScale)
	client := &http.Client{Timeout: 10 * time.Second}
	for _, path := range []string{"/press/flood", "/turn/filter/off"} {
		response, err := client.Post(address+path, "text/plain", nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
}
