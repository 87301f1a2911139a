// Package docs checks README.md and the pages below docs: that their Go is Go that the tests compile, that their links
// lead somewhere, and that README leads to each
// page in two clicks.
//
// A page's Go stands twice: in the page, and with what surrounds it in a Go file, of this package or any other of the
// repository, where go vet, the linters and gopls see it and where most of it is run as an Example. A piece is found by
// its text alone, so nothing in a page says where it stands; a changed name in the library breaks the build of the file,
// and mending the file breaks the page's test.
package docs

import (
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// pages returns the pages of the root, those of the examples and of the benchmark's results, and every page below docs by their paths from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	read := func(name string) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		found[name] = string(text)
	}
	for _, name := range []string{"README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md", "internal/bench/RESULTS.md"} {
		read(name)
	}
	alone := len(found)
	err := fs.WalkDir(os.DirFS(root), "docs", func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".md") {
			read(name)
		}
		return err
	})
	if err != nil || len(found) == alone {
		t.Fatalf("%d pages, %v", len(found), err)
	}
	return found
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

func TestEverySnippetIsCompiled(t *testing.T) {
	files := goFiles(t)
	for name, page := range pages(t) {
		for _, block := range fence.FindAllStringSubmatchIndex(page, -1) {
			if page[block[2]:block[3]] != "go" {
				continue
			}
			snippet := page[block[4]:block[5]]
			if !slices.ContainsFunc(files, func(file string) bool { return holds(file, snippet) }) {
				t.Errorf("%s:%d: no Go file of the repository holds these lines; put them into one of internal/docs:\n%s",
					name, 1+strings.Count(page[:block[0]], "\n"), snippet)
			}
		}
	}
}

// goFiles returns the text of every Go file that make test compiles, or make bench with its tag gozero.
func goFiles(t *testing.T) (files []string) {
	t.Helper()
	context := build.Default
	context.BuildTags = []string{"gozero"}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if name := entry.Name(); name == "testdata" || name == "bin" || strings.HasPrefix(name, ".") && path != root {
				return fs.SkipDir
			}
			return nil
		case filepath.Ext(path) != ".go":
			return nil
		}
		if compiled, err := context.MatchFile(filepath.Split(path)); !compiled || err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		files = append(files, "\n"+string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// holds reports whether the lines of snippet follow one another in file, further to the right by any number of tabs.
func holds(file, snippet string) bool {
	first, _, _ := strings.Cut(snippet, "\n")
	for depth := range 6 {
		indent := strings.Repeat("\t", depth)
		if !strings.Contains(file, "\n"+indent+first+"\n") {
			continue
		}
		var indented strings.Builder
		for line := range strings.Lines(snippet) {
			if line != "\n" {
				indented.WriteString(indent)
			}
			indented.WriteString(line)
		}
		if strings.Contains(file, "\n"+indented.String()) {
			return true
		}
	}
	return false
}

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|href|srcset)="([^"]+)"`)
	code     = regexp.MustCompile("`[^`\n]*`")
	heading  = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
	unspoken = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	pages := pages(t)
	links := 0
	for name, page := range pages {
		for _, target := range targets(page) {
			if strings.Contains(target, "://") {
				continue // a test must not depend on somebody else's server
			}
			links++
			path, anchor, _ := strings.Cut(target, "#")
			to := name
			if path != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(name), path))
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s: %s leads nowhere: %v", name, target, err)
				continue
			}
			if anchor == "" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(root, to))
			if err != nil || !slices.Contains(anchors(string(text)), anchor) {
				t.Errorf("%s: %s has no such heading (%v)", name, target, err)
			}
		}
	}
	if links == 0 {
		t.Error("there are no links: this tests nothing")
	}
}

// targets returns where the links and images of a page lead, but for what stands in its code.
func targets(page string) (all []string) {
	page = code.ReplaceAllString(fence.ReplaceAllString(page, ""), "``")
	for _, match := range link.FindAllStringSubmatch(page, -1) {
		all = append(all, match[1]+match[2])
	}
	return all
}

// anchors returns the names by which GitHub links to the headings of a page.
func anchors(page string) (all []string) {
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		name := unspoken.ReplaceAllString(strings.ToLower(match[1]), "")
		all = append(all, strings.ReplaceAll(name, " ", "-"))
	}
	return all
}

// A page that nobody finds answers nobody: README leads to each page for users by itself, and to the others by one of these.
func TestReadmeLeadsToEachPageInTwoClicks(t *testing.T) {
	pages := pages(t)
	reached := map[string]bool{"README.md": true}
	follow := func(from string) {
		for _, target := range targets(pages[from]) {
			path, _, _ := strings.Cut(target, "#")
			reached[filepath.ToSlash(filepath.Join(filepath.Dir(from), path))] = true
		}
	}
	follow("README.md")
	for name := range pages {
		if ok, _ := filepath.Match("docs/*.md", name); ok && !reached[name] {
			t.Errorf("README.md has no link to %s", name)
		} else if ok {
			follow(name)
		}
	}
	for name := range pages {
		if !reached[name] {
			t.Errorf("neither README.md nor a page of docs has a link to %s", name)
		}
	}
}

// The checks have to notice what they are for.
func TestChecksNotice(t *testing.T) {
	file := "\npackage p\n\nfunc f() {\n\ta()\n\n\tb(1)\n}\n"
	for snippet, want := range map[string]bool{
		"a()\n\nb(1)\n":          true,
		"func f() {\n\ta()\n":    true,
		"b(1)\n":                 true,
		"b(2)\n":                 false,
		"a()\nb(1)\n":            false,
		"a()\n\n\tb(1)\n":        false,
		"func f() {\n\ta()\n}\n": false,
	} {
		if got := holds(file, snippet); got != want {
			t.Errorf("holds(%q) is %v", snippet, got)
		}
	}
	page := "# A `b`, c: d\n[x](#a-b-c-d) `[y](no)` <img src=\"z.svg\">\n```go\n[q](no)\n```\n![p](p.png)\n"
	if got := targets(page); !slices.Equal(got, []string{"#a-b-c-d", "z.svg", "p.png"}) {
		t.Errorf("targets: %q", got)
	}
	if got := anchors(page); !slices.Equal(got, []string{"a-b-c-d"}) {
		t.Errorf("anchors: %q", got)
	}
}
