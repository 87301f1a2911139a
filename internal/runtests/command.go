package main

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// A command is a command line of go test.
type command struct {
	flags, packages []string
	tests           []string // that must run; nil: at least one
}

// parse makes a command of arguments of runtests. It looks for what -with names below
// root.
func parse(root string, args []string) (command, error) {
	var c command
	for _, arg := range args {
		word, with := strings.CutPrefix(arg, "-with=")
		switch {
		case with:
			found, err := having(root, word)
			if err != nil {
				return c, err
			}
			for _, dir := range slices.Sorted(maps.Keys(found)) {
				c.packages = append(c.packages, "./"+filepath.ToSlash(dir))
				c.tests = append(c.tests, found[dir]...)
			}
			if c.tests == nil {
				return c, fmt.Errorf("no test has %s", word)
			}
			c.flags = append(c.flags, "-run=^("+strings.Join(c.tests, "|")+")$")
		case strings.HasPrefix(arg, "-"):
			c.flags = append(c.flags, arg)
		default:
			c.packages = append(c.packages, arg)
		}
	}
	return c, nil
}

// having returns the tests below root, by directory, that use the identifier word, or
// whose file is only built with word as a tag.
func having(root, word string) (map[string][]string, error) {
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		tagged := needsTag(file, word)
		for _, test := range testsOf(file) {
			if tagged || uses(test, word) {
				found[dir] = append(found[dir], test.Name.Name)
			}
		}
		return nil
	})
	return found, err
}

// testsOf returns the functions of a file that go test may run by name.
func testsOf(file *ast.File) []*ast.FuncDecl {
	var tests []*ast.FuncDecl
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || f.Name.Name == "TestMain" {
			continue
		}
		for _, kind := range []string{"Test", "Example", "Fuzz"} {
			if strings.HasPrefix(f.Name.Name, kind) {
				tests = append(tests, f)
			}
		}
	}
	return tests
}

func uses(f *ast.FuncDecl, word string) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && id.Name == word
		return !found
	})
	return found
}

func needsTag(file *ast.File, word string) bool {
	for _, group := range file.Comments {
		for _, comment := range group.List {
			if comment.Pos() > file.Package || !constraint.IsGoBuild(comment.Text) {
				continue
			}
			expr, err := constraint.Parse(comment.Text)
			if err != nil {
				return false // go test says so
			}
			return expr.Eval(func(string) bool { return true }) &&
				!expr.Eval(func(tag string) bool { return tag != word })
		}
	}
	return false
}
