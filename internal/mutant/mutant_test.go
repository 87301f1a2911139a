package mutant

import (
	"os"
	"strings"
	"testing"
)

const file = "internal/mutant/testdata/tiny/tiny.go"

func TestARunSeesTheEdits(t *testing.T) {
	for _, test := range []struct {
		name   string
		edits  []Edit
		failed bool
	}{
		{"none", nil, false},
		{"harmless", []Edit{{file, "division by zero", "zero"}}, false},
		{"in two places", []Edit{{file, "b == 0", "b == 100"}, {file, "a / b", "a"}}, true},
		{"one after the other in one place", []Edit{{file, "b == 0", "b == 100"}, {file, "b == 100", "a == b"},
			{file, "a / b", "a + b"}}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := tiny("ByZero", test.edits...)
			m.Env = []string{"TINY_COMPLAINT=no safeguard"}
			output, failed := Run(t, m)
			if failed != test.failed || strings.Contains(output, "no safeguard") != test.failed {
				t.Errorf("want failed: %v, got %v and\n%s", test.failed, failed, output)
			}
		})
	}
}

func TestAMutantThatPanicsHasFailed(t *testing.T) {
	output, failed := Run(t, tiny("ByZero", Edit{file, "b == 0", "b == 100"}))
	if !failed || !strings.Contains(output, "integer divide by zero") {
		t.Errorf("want a failure that says why, got %v and\n%s", failed, output)
	}
}

func TestAnEmbeddedFileCanBeEdited(t *testing.T) {
	edit := Edit{"internal/mutant/testdata/tiny/greeting.txt", "hello", "good-bye"}
	if output, failed := Run(t, tiny("Greeting", edit)); !failed || !strings.Contains(output, "good-bye") {
		t.Errorf("want a failure that says good-bye, got %v and\n%s", failed, output)
	}
}

// Without these errors a mutant could stop being one, and its test would not notice.
func TestWhatIsNoMutantIsAnError(t *testing.T) {
	for _, test := range []struct {
		name string
		of   Of
		want string
	}{
		{"edit fits nowhere", tiny("ByZero", Edit{file, "b == 1", "b == 100"}), "got 0 places"},
		{"edit fits twice", tiny("ByZero", Edit{file, "0", "1"}), "got 2 places"},
		{"edit changes nothing", tiny("ByZero", Edit{file, "b == 0", "b == 0"}), "an edit that changes"},
		{"no such file", tiny("ByZero", Edit{"nowhere.go", "a", "b"}), "nowhere.go"},
		{"does not compile", tiny("ByZero", Edit{file, "b == 0", "b == nil"}), "does not compile"},
		{"no such test", tiny("ByOne"), "no test that matches ByOne"},
	} {
		t.Run(test.name, func(t *testing.T) {
			output, failed, err := run(test.of, t.TempDir())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want an error that says %q, got %v, failed: %v\n%s", test.want, err, failed, output)
			}
		})
	}
}

func TestTheRepositoryStaysAsItIs(t *testing.T) {
	before, err := os.ReadFile("testdata/tiny/tiny.go")
	if err != nil {
		t.Fatal(err)
	}
	Run(t, tiny("ByZero", Edit{file, "b == 0", "b == 100"}))
	if after, _ := os.ReadFile("testdata/tiny/tiny.go"); string(after) != string(before) {
		t.Errorf("want the file unchanged, got\n%s", after)
	}
}

func tiny(test string, edits ...Edit) Of {
	return Of{Package: "./internal/mutant/testdata/tiny", Test: test, Edits: edits}
}
