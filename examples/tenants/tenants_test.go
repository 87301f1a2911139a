package main

import (
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// One tenant of a hundred is cleared: its products are loaded again, once for both processes,
// and no others. A tag shares its counter with one in 65,536: of these no two do.
func TestOneTenantIsLoadedAgain(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), &out, miniredis.RunT(t).Addr(), 100, 10); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"first process: 1000 products read, 1000 of them loaded\nsecond process: 1000 products read, 0 of them loaded\n",
		"by one command\nfirst process: 1000 products read, 10 of them loaded\nsecond process: 1000 products read, 0 of them loaded\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s\nwant\n%s", &out, want)
		}
	}
}
