// Command counts prints how large the library is: lines by package, public identifiers,
// words of the pages, and the words that a maintainer has to know.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// library are the packages that a user's program may contain. Their lines add up to the library's.
var library = []string{
	"cache", "cache/feed", "cache/audit", "cache/internal/inside", "cache/internal/follow", "cache/internal/keytext", "mutexrebuild", "localcache", "breaker", "bloom", "lock", "lock/redlock",
	"internal/guard", "internal/tier", "internal/rebuild", "internal/flight", "internal/fleet", "internal/redisconn", "internal/keys", "internal/doorkeeper", "internal/contain", "internal/fence", "internal/wait", "internal/logonce", "internal/failpoint",
}

func main() {
	if err := report(os.Stdout, "."); err != nil {
		fmt.Fprintln(os.Stderr, "counts:", err)
		os.Exit(1)
	}
}

// report counts what stands below root.
func report(w io.Writer, root string) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "package\tfiles\tcode\tcomments\ttests\tLua\tpublic\t")
	var all size
	for _, name := range library {
		s, err := measure(filepath.Join(root, name))
		if err != nil {
			return err
		}
		if s.files == 0 {
			continue // not there, or not there yet
		}
		s.print(out, name)
		all.add(s)
	}
	all.print(out, "all")
	if err := out.Flush(); err != nil {
		return err
	}

	design, err := os.ReadFile(filepath.Join(root, "docs", "internals", "design.md"))
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "\n%d rows in the table of words of docs/internals/design.md\n", rows(string(design), "## The words")); err != nil {
		return err
	}
	for _, folder := range []string{"docs", "docs/reference", "docs/internals"} {
		n, err := words(root, folder, folder == "docs") // README.md is for users
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%d words in %s\n", n, folder); err != nil {
			return err
		}
	}
	return nil
}

// A size is what one package comes to.
type size struct {
	files          int
	code, comments int // lines of Go; a line with both is code
	tests          int // lines of Go in tests, with their comments and blank lines
	lua            int // lines that are neither blank nor comments
	public         int // exported functions, types, methods, fields, variables and constants
}

func (s *size) add(t size) {
	s.files += t.files
	s.code += t.code
	s.comments += t.comments
	s.tests += t.tests
	s.lua += t.lua
	s.public += t.public
}

func (s size) print(w io.Writer, name string) {
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t\n", name, s.files, s.code, s.comments, s.tests, s.lua, s.public)
}

// measure counts the package in dir, with the scripts below it. It is nothing if dir is not there.
func measure(dir string) (s size, err error) {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return s, nil
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			if err != nil {
				return s, err
			}
			s.tests += bytes.Count(text, []byte("\n"))
		case strings.HasSuffix(path, ".go"):
			if err := s.addFile(path); err != nil {
				return s, err
			}
		case e.IsDir():
			scripts, _ := filepath.Glob(filepath.Join(path, "*.lua"))
			for _, script := range scripts {
				if err := s.addScript(script); err != nil {
					return s, err
				}
			}
		case strings.HasSuffix(path, ".lua"):
			if err := s.addScript(path); err != nil {
				return s, err
			}
		}
	}
	return s, err
}

func (s *size) addFile(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	code, comments := lines(text)
	s.files++
	s.code += code
	s.comments += comments
	s.public += public(parsed)
	return nil
}

func (s *size) addScript(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			s.lua++
		}
	}
	return nil
}

// lines counts the lines of a Go file that hold code, and those that hold comments alone.
func lines(text []byte) (code, comments int) {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var scan scanner.Scanner
	scan.Init(file, text, nil, scanner.ScanComments)
	const comment, other = 1, 2
	kind := map[int]int{}
	for {
		pos, tok, literal := scan.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && literal == "\n" {
			continue // put there by the scanner
		}
		is := other
		if tok == token.COMMENT {
			is = comment
		}
		first := file.Line(pos)
		for line := first; line <= first+strings.Count(literal, "\n"); line++ {
			kind[line] = max(kind[line], is)
		}
	}
	for _, is := range kind {
		if is == other {
			code++
		} else {
			comments++
		}
	}
	return code, comments
}

// public counts what a file exports: functions, types, methods of exported types, their
// fields and the methods of interfaces, variables and constants.
func public(file *ast.File) (n int) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || receiver(d.Recv.List[0].Type).IsExported()) {
				n++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						n += 1 + members(s.Type)
					}
				case *ast.ValueSpec:
					n += exported(s.Names)
				}
			}
		}
	}
	return n
}

// receiver returns the name of a method's type, without pointer and type parameters.
func receiver(e ast.Expr) *ast.Ident {
	switch x := e.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.IndexListExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x
	}
	return ast.NewIdent("_")
}

// members counts the exported fields of a struct and the exported methods of an interface.
func members(e ast.Expr) (n int) {
	var list *ast.FieldList
	switch t := e.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	default:
		return 0
	}
	for _, field := range list.List {
		if n += exported(field.Names); field.Names == nil && receiver(field.Type).IsExported() {
			n++ // embedded
		}
	}
	return n
}

func exported(names []*ast.Ident) (n int) {
	for _, name := range names {
		if name.IsExported() {
			n++
		}
	}
	return n
}

// rows counts the rows of the first table under a heading of a page.
func rows(page, heading string) (n int) {
	_, after, _ := strings.Cut(page, "\n"+heading+"\n")
	inTable := false
	for line := range strings.Lines(after) {
		if !strings.HasPrefix(line, "|") {
			if inTable {
				break
			}
			continue
		}
		inTable = true
		n++
	}
	return max(0, n-2) // without its head and its rule
}

// words counts those of the pages in a folder, without its subfolders, and of README.md if it is wanted.
func words(root, folder string, readme bool) (n int, err error) {
	pages, err := filepath.Glob(filepath.Join(root, folder, "*.md"))
	if readme {
		pages = append(pages, filepath.Join(root, "README.md"))
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return n, err
		}
		n += len(bytes.Fields(text))
	}
	return n, err
}
