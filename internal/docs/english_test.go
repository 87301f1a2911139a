package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The habits that made the pages hard to read, and what to write in their place.
var riddles = map[string]*regexp.Regexp{
	"calls, reads, queries; is called":        regexp.MustCompile(`(?i)\b(?:is|are|was|were|be|being|been|not) asked\b|\basks\b|\basked for\b|\bha[sd] \w+ asked\b`),
	"is, is stored in, is held":               regexp.MustCompile(`(?i)\bstands?\b|\bstood\b`),
	"is served, serves it":                    regexp.MustCompile(`(?i)\b(?:values?|nulls?|cop(?:y|ies)|entr(?:y|ies)|ones?|rows?|sources?)(?: may| can| that [a-z ]+)? answers?\b`),
	"in front of":                             regexp.MustCompile(`(?i)\bbefore (?:the|a) (?:database|source)\b`),
	"callers, readers, processes; by name":    regexp.MustCompile(`(?i)\bthose who\b|\bwho has the\b|\bhears? (?:of|so|nothing)\b|(?-i:\bWhoever\b)`),
	"can take, is notified, fix":              regexp.MustCompile(`(?i)\bbears?\b|\btold of\b|\bmend(?:s|ed)?\b`),
	"the two parties, during, while, next to": regexp.MustCompile(`(?i)\bbeside (?:a|the) writers?\b|\bloaded beside\b`),
}

// subject is one more, for pages alone: a sentence that begins with what or that as its noun.
var subject = regexp.MustCompile(`(?m)(?:^|^- |[.:] )(?:What|That) (?:was|is|it|a|the|one|no|somebody|nobody) (?:[a-z]+ )*[a-z]+\b`)

// plain reports each riddle in a text that begins at a line of a file, also one that goes on in the
// next line. Headings and code are left out.
func plain(t *testing.T, name string, first int, text string) {
	t.Helper()
	text = headings.ReplaceAllString(code.ReplaceAllString(text, "``"), "")
	for better, riddle := range riddles {
		for _, at := range riddle.FindAllStringIndex(strings.ReplaceAll(text, "\n", " "), -1) {
			t.Errorf("%s:%d: %q; plainer: %s", name, first+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], better)
		}
	}
}

var headings = regexp.MustCompile(`(?m)^#.*$`)

// Pages for users are in plain English. When each of them had private words of its own ("the source is asked", "an old value
// answers", "what stands in Redis"), readers had to learn 47 terms before they understood a guarantee.
func TestPagesForUsersAreInPlainEnglish(t *testing.T) {
	looked := 0
	for name, page := range pages(t) {
		if dir := path.Dir(name); dir != "." && dir != "docs" && dir != "docs/reference" {
			continue
		}
		looked++
		page = fence.ReplaceAllStringFunc(page, func(block string) string { return strings.Repeat("\n", strings.Count(block, "\n")) })
		plain(t, name, 1, page)
		if found := subject.FindString(page); found != "" {
			t.Errorf("%s: %q; plainer: the thing itself as the subject", name, found)
		}
	}
	if looked < 15 {
		t.Errorf("%d pages", looked)
	}
}

// The packages that users import.
var public = []string{
	"cache", "cache/feed", "cache/audit", "cache/cachedebug", "cache/cacheadmin", "cache/cachetest", "cache/cacheprom", "cache/cacheotel", "cache/codecs", "cache/outbox",
	"cache/pgfeed", "cache/mysqlfeed", "mutexrebuild", "localcache", "breaker", "bloom", "lock", "lock/redlock",
}

// sources calls do for each Go file of dirs that is no test.
func sources(t *testing.T, dirs []string, do func(name string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	for _, dir := range dirs {
		names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, name, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			do(name, files, file)
		}
	}
}

// So is what go doc shows of the packages.
func TestDocCommentsAreInPlainEnglish(t *testing.T) {
	looked := 0
	sources(t, public, func(name string, files *token.FileSet, file *ast.File) {
		ast.FileExports(file) // leaves what go doc shows
		for _, comment := range shown(file) {
			looked++
			plain(t, name, files.Position(comment.Pos()).Line, strings.ReplaceAll(comment.Text(), "\n#", "\n"))
		}
	})
	if looked < 500 {
		t.Errorf("%d comments", looked)
	}
}

// shown returns the comments that belong to a file's package, declarations and fields.
func shown(file *ast.File) (all []*ast.CommentGroup) {
	ast.Inspect(file, func(n ast.Node) bool {
		if group, ok := n.(*ast.CommentGroup); ok {
			all = append(all, group)
		}
		return true
	})
	return all
}

// So are the texts of errors and log lines, wherever in the library they are made.
func TestErrorsAndLogLinesAreInPlainEnglish(t *testing.T) {
	makes := map[string]bool{"errors.New": true, "fmt.Errorf": true, "Debug": true, "Info": true, "Warn": true, "Error": true, "Last": true}
	looked := 0
	inside := []string{"internal/fleet", "internal/flight", "internal/guard", "internal/redisconn", "internal/tier", "cache/internal/follow"}
	sources(t, append(inside, public...), func(name string, files *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			of, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, _ := of.X.(*ast.Ident)
			text, literal := call.Args[0].(*ast.BasicLit)
			if literal && (makes[of.Sel.Name] || pkg != nil && makes[pkg.Name+"."+of.Sel.Name]) {
				looked++
				plain(t, name, files.Position(text.Pos()).Line, text.Value)
			}
			return true
		})
	})
	if looked < 200 {
		t.Errorf("%d texts", looked)
	}
}
