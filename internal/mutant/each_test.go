package mutant

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var names = []string{"first", "second", "third"}

// ofRun has the test be part of go test -run=pattern with LEVEE_MUTANTS=value.
func ofRun(t *testing.T, pattern, value string) {
	t.Helper()
	run := flag.Lookup("test.run").Value
	was := run.String()
	t.Cleanup(func() { _ = run.Set(was) })
	if err := run.Set(pattern); err != nil {
		t.Fatal(err)
	}
	t.Setenv(variable, value)
}

func TestANumberChoosesOneMutant(t *testing.T) {
	seen := map[string]bool{}
	for number := range 100 {
		ofRun(t, "", fmt.Sprint(number))
		one, why := chosen(t, names)
		if again, _ := chosen(t, names); again != one {
			t.Errorf("%d chooses %q and %q", number, one, again)
		}
		if want := fmt.Sprintf("this run builds %q, LEVEE_MUTANTS=%d does so again; make mutants builds all", one, number); why != want {
			t.Errorf("want %s, got %s", want, why)
		}
		seen[one] = true
	}
	if len(seen) != 3 {
		t.Errorf("want each sooner or later, got %v", seen)
	}
}

func TestTestsHaveMutantsOfTheirOwnByOneNumber(t *testing.T) {
	ofRun(t, "", "7")
	seen := map[string]bool{}
	for range 100 {
		t.Run("test", func(t *testing.T) {
			one, _ := chosen(t, names)
			seen[one] = true
		})
	}
	if len(seen) != 3 {
		t.Errorf("want all three, got %v", seen)
	}
}

func TestWhatIsNoNumberIsRefused(t *testing.T) {
	ofRun(t, "", "some")
	var s *said
	t.Run("test", func(t *testing.T) {
		s = &said{TB: t}
		chosen(s, names)
	})
	if want := `LEVEE_MUTANTS is "some", want all or a number`; s.fail != want {
		t.Errorf("want %s, got %q", want, s.fail)
	}
}

// Chance that is the same in each process would build one mutant and never another.
func TestEachProcessTakesANumberByChance(t *testing.T) {
	if os.Getenv("LEVEE_MUTANTS_PRINT") != "" {
		ofRun(t, "", "")
		_, _ = chosen(t, names)
		return
	}
	seen := map[string]bool{}
	for range 5 {
		run := exec.Command(os.Args[0], "-test.v", "-test.run=^TestEachProcessTakesANumberByChance$")
		run.Env = append(os.Environ(), "LEVEE_MUTANTS_PRINT=1")
		printed, err := run.CombinedOutput()
		number := regexp.MustCompile(`LEVEE_MUTANTS=\d+`).FindString(string(printed))
		if err != nil || number == "" {
			t.Fatalf("%v\n%s", err, printed)
		}
		seen[number] = true
	}
	if len(seen) < 2 {
		t.Errorf("want numbers that differ, got %v", seen)
	}
}

func TestEachBuildsOneMutantAndLooksAtTheOthers(t *testing.T) {
	for _, of := range []struct {
		pattern, value string
		built          int
	}{{"", "5", 1}, {"^TestA$", "", 1}, {"", "all", 3}, {"^TestA$/^a$", "", 3}} {
		t.Run(of.pattern+" "+of.value, func(t *testing.T) {
			ofRun(t, of.pattern, of.value)
			var built, all []string
			Each(t, map[string]string{"first": "1", "second": "2", "third": "3"}, func(t testing.TB, m string) {
				all = append(all, m)
				if _, out := t.(leftOut); !out {
					built = append(built, m)
				}
			})
			if len(built) != of.built || !slices.Equal(all, []string{"1", "2", "3"}) {
				t.Errorf("want %d built, got %q of %q", of.built, built, all)
			}
		})
	}
}

// A said is a test that Run ends, and what it says then.
type said struct {
	testing.TB
	skip, fail string
}

func (s *said) Skip(args ...any)                  { s.skip = fmt.Sprint(args...); s.SkipNow() }
func (s *said) Fatal(args ...any)                 { s.fail = fmt.Sprint(args...); s.SkipNow() }
func (s *said) Fatalf(format string, args ...any) { s.Fatal(fmt.Sprintf(format, args...)) }

// A mutant that no longer fits would be noticed when its turn comes, by somebody who has not
// changed the code.
func TestAMutantThatIsLeftOutHasToFit(t *testing.T) {
	for _, of := range []struct {
		edit       Edit
		skip, fail string
	}{
		{Edit{file, "b == 0", "b == 100"}, "the reason", ""},
		{Edit{file, "b == 0", "b == nil"}, "the reason", ""}, // what does not compile is seen in its turn
		{Edit{file, "b == 1", "b == 100"}, "", "got 0 places"},
		{Edit{file, "0", "1"}, "", "got 2 places"},
		{Edit{"nowhere.go", "a", "b"}, "", "nowhere.go"},
	} {
		var s *said
		t.Run(of.edit.File+" "+of.edit.Old, func(t *testing.T) {
			s = &said{TB: t}
			Run(leftOut{s, "the reason"}, tiny("ByZero", of.edit))
			s.fail = "it was built"
		})
		if s.skip != of.skip || !strings.Contains(s.fail, of.fail) || of.fail == "" && s.fail != "" {
			t.Errorf("%v: want to skip for %q and to fail for %q, got %q and %q", of.edit, of.skip, of.fail, s.skip, s.fail)
		}
	}
}
