// Package stagetest tests the examples that package stage performs.
package stagetest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/levee-go/levee/examples/internal/stage"
	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

// Check is the test of every example: its naive recipes go wrong, the others do not and fail nobody, and nothing is left behind. It plays
// the naive recipes at a scale of their own and one after the other on the same servers, as the program does. Each of the others has servers
// of its own, and all are played at the same time, because they mostly wait for slow customers.
func Check[S any](t *testing.T, play stage.Play[S], naive S) []stage.Result {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("GORACE", race.QuickExit())
	wrong := play
	wrong.Scale, wrong.Recipes = naive, nil
	plays := []*stage.Play[S]{&wrong}
	for _, recipe := range play.Recipes {
		if recipe.Naive {
			wrong.Recipes = append(wrong.Recipes, recipe)
			continue
		}
		alone := play
		alone.Recipes = []stage.Recipe[S]{recipe}
		plays = append(plays, &alone)
	}
	outs, played, errs := make([]bytes.Buffer, len(plays)), make([][]stage.Result, len(plays)), make([]error, len(plays))
	var all sync.WaitGroup
	for i, p := range plays {
		all.Go(func() { played[i], errs[i] = p.Perform(t.Context(), "", os.Getenv("LEVEE_POSTGRES"), &outs[i]) })
	}
	all.Wait()
	var results []stage.Result
	for i, p := range plays {
		t.Logf("%s", outs[i].String())
		if errs[i] != nil {
			t.Error(errs[i])
		}
		if len(played[i]) != len(p.Recipes) {
			t.Errorf("%d rows for %d recipes", len(played[i]), len(p.Recipes))
		}
		for j, result := range played[i] {
			checkResult(t, p.Recipes[j], result)
		}
		results = append(results, played[i]...)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "levee*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	checkMistakes(t, play)
	return results
}

func checkResult[S any](t *testing.T, recipe stage.Recipe[S], result stage.Result) {
	t.Helper()
	if result.Naive && result.Wrong == "" {
		t.Errorf("%s: nothing went wrong; then the others prove nothing", result.Recipe)
	}
	if !result.Naive && result.Tally.Failed > 0 {
		t.Errorf("%s: %d failures, the first: %s", result.Recipe, result.Tally.Failed, result.Tally.FirstFailure)
	}
	if result.Tally.Served == 0 && !recipe.Deadly {
		t.Errorf("%s: nobody was served", result.Recipe)
	}
}

// checkMistakes looks whether mistakes in the flags and servers that do not answer are told in one line.
func checkMistakes[S any](t *testing.T, play stage.Play[S]) {
	t.Helper()
	addr := fmt.Sprint("127.0.0.1:", redistest.FreePort()) // where nobody listens
	for _, test := range []struct {
		args, want string
		code       int
	}{
		{"-speed 3", "flag provided but not defined: -speed", 2},
		{"now", `unexpected argument "now"`, 2},
		{"-redis " + addr, "no Redis at " + addr, 1},
		{"-redis redis://" + addr + "/0", "no Redis at " + addr, 1},
		{"-postgres postgres://nobody@" + addr + "/shop", "making a schema in PostgreSQL", 1},
		{"-postgres ://", "the DSN of PostgreSQL", 1},
	} {
		var out, errs bytes.Buffer
		if code := play.Run(t.Context(), strings.Fields(test.args), &out, &errs); code != test.code {
			t.Errorf("%s: exit code %d, want %d", test.args, code, test.code)
		}
		if got := errs.String(); !strings.HasPrefix(got, play.Name+": "+test.want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %q", test.args, got)
		}
		if out.Len() > 0 {
			t.Errorf("%s: printed %q", test.args, out.String())
		}
	}
}
