package mutant

import (
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// variable says which mutants Each builds: all, or those that a number chooses. Unless it is
// set, each process takes a number by chance.
const variable = "LEVEE_MUTANTS"

// Each runs test as a subtest for each of the mutants, by their names; test calls Run with the
// t that it gets. A build of a mutant and its run take long, so one mutant is built, another
// from run to run, and of the others Run only looks whether their edits fit the code. All are
// built if LEVEE_MUTANTS=all is set, which "make mutants" does, and all that match if the -run
// of go test names subtests.
func Each[M any](t *testing.T, mutants map[string]M, test func(t testing.TB, m M)) {
	t.Helper()
	names := slices.Sorted(maps.Keys(mutants))
	built, why := chosen(t, names)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if built == "" || name == built {
				test(t, mutants[name])
			} else {
				test(leftOut{t, why}, mutants[name])
			}
		})
	}
}

// chosen returns the name of the mutant to build and a line for the others, or "" for all.
func chosen(t testing.TB, names []string) (name, why string) {
	t.Helper()
	value := os.Getenv(variable)
	if value == "all" || strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return "", ""
	}
	number := anyNumber()
	if value != "" {
		set, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			t.Fatalf("%s is %q, want all or a number", variable, value)
		}
		number = set
	}
	hash := fnv.New64a()
	fmt.Fprint(hash, t.Name())
	name = names[rand.New(rand.NewPCG(number, hash.Sum64())).IntN(len(names))]
	why = fmt.Sprintf("this run builds %q, %s=%d does so again; make mutants builds all", name, variable, number)
	t.Log(why)
	return name, why
}

// anyNumber is the same for all tests of a process.
var anyNumber = sync.OnceValue(func() uint64 { return rand.Uint64N(1_000_000) })

// A leftOut is the t of a mutant that is not built.
type leftOut struct {
	testing.TB
	why string
}

// skip ends the test. It fails if an edit of the mutant does not fit.
func (t leftOut) skip(m Of) {
	t.Helper()
	root, err := moduleRoot()
	if err == nil {
		_, err = m.edited(root)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Skip(t.why)
}
