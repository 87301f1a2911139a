// Package docs checks README.md and the pages of docs: that their Go is Go that the tests compile, that their links
// lead somewhere, and that README leads to each page.
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

// pages returns README.md and docs/*.md by their paths from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%d pages, %v", len(names), err)
	}
	found := make(map[string]string)
	for _, name := range append(names, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		found[filepath.ToSlash(strings.TrimPrefix(name, root+string(filepath.Separator)))] = string(text)
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
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"`)
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

func TestReadmeLeadsToEachPage(t *testing.T) {
	pages := pages(t)
	linked := targets(pages["README.md"])
	for name := range pages {
		if name != "README.md" && !slices.Contains(linked, name) {
			t.Errorf("README.md has no link to %s", name)
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
