// Package mutant shows that a test fails when a safeguard is taken out of the code. It
// is for tests only.
//
// A mutant is the repository with small edits: Run builds the tests of a package with
// them and runs one of these tests. The test that calls Run expects it to fail:
//
//	output, failed := mutant.Run(t, mutant.Of{
//		Package: "./internal/linear", Test: "^TestHistories$", Race: true,
//		Edits: []mutant.Edit{{File: "internal/fleet/store.go", Old: "if held {", New: "if true {"}},
//	})
//
// A test that has several mutants gives them to Each, which builds one of them.
//
// The edits are made in copies, which the go command reads through -overlay; no file of
// the repository changes.
package mutant

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Of describes a mutant and the test to run in it. Files and packages are named from
// the root of the module.
type Of struct {
	Package string // such as ./cache
	Test    string // a pattern as for go test -run; it must match a test
	Edits   []Edit
	Tags    string   // build tags, separated by commas
	Race    bool     // build with the race detector
	Env     []string // additional environment, as NAME=value
}

// An Edit replaces Old, which must be in File exactly once, by New. File is Go source or
// an embedded file, such as a Lua script.
type Edit struct{ File, Old, New string }

// Run runs the test in the mutant and returns what it printed and whether it failed.
// The calling test fails at once if the mutant cannot be made: an edit does not fit the
// code any more, the code does not compile, or there is no such test. It is skipped if
// Each leaves the mutant out and its edits fit.
func Run(t testing.TB, m Of) (output string, failed bool) {
	t.Helper()
	if out, ok := t.(leftOut); ok {
		out.skip(m)
	}
	output, failed, err := run(m, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return output, failed
}

func run(m Of, dir string) (output string, failed bool, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", false, err
	}
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return "", false, err
	}
	binary := filepath.Join(dir, "mutant.test")
	build := exec.Command("go", "test", "-c", "-o", binary, "-overlay", overlay, "-vet=off",
		"-race="+strconv.FormatBool(m.Race), "-tags", m.Tags, m.Package)
	build.Dir = root
	if printed, err := build.CombinedOutput(); err != nil {
		return "", false, fmt.Errorf("the mutant does not compile: %w\n%s", err, printed)
	}

	test := exec.Command(binary, "-test.run", m.Test, "-test.timeout", "10m")
	test.Dir = filepath.Join(root, m.Package) // as go test does
	test.Env = append(os.Environ(), m.Env...)
	printed, err := test.CombinedOutput()
	if strings.Contains(string(printed), "testing: warning: no tests to run") {
		return "", false, fmt.Errorf("%s has no test that matches %s", m.Package, m.Test)
	}
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return "", false, err
	}
	return string(printed), err != nil, nil
}

// overlay writes the edited files into dir, with the JSON file for -overlay that puts
// them in place of the originals, and returns the name of that file.
func (m Of) overlay(root, dir string) (string, error) {
	edited, err := m.edited(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for file, source := range edited {
		patched := filepath.Join(dir, strconv.Itoa(len(replace))+filepath.Ext(file))
		replace[filepath.Join(root, file)] = patched
		if err := os.WriteFile(patched, []byte(source), 0o600); err != nil {
			return "", err
		}
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, content, 0o600)
}

// edited returns the files that have edits, as they are with them. It returns an error if an
// edit does not fit.
func (m Of) edited(root string) (map[string]string, error) {
	edited := map[string]string{}
	for _, e := range m.Edits {
		source, ok := edited[e.File]
		if !ok {
			original, err := os.ReadFile(filepath.Join(root, e.File))
			if err != nil {
				return nil, err
			}
			source = string(original)
		}
		if n := strings.Count(source, e.Old); n != 1 || e.Old == e.New {
			return nil, fmt.Errorf("want an edit that changes one place in %s, got %d places for\n%s", e.File, n, e.Old)
		}
		edited[e.File] = strings.Replace(source, e.Old, e.New, 1)
	}
	return edited, nil
}

// moduleRoot finds the module that the test which runs belongs to.
func moduleRoot() (string, error) {
	gomod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	return filepath.Dir(strings.TrimSpace(string(gomod))), nil
}
