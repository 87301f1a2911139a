package security

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// withScripts are the packages that send scripts to Redis.
var withScripts = []string{"cache/internal/follow", "internal/fleet", "lock", "bloom"}

// aboveRedisconn are the packages that talk to Redis through redisconn, or not at all.
var aboveRedisconn = []string{"cache", "cache/internal/follow", "mutexrebuild", "lock", "bloom", "localcache", "breaker", "internal/fleet", "internal/tier", "internal/guard", "internal/flight", "internal/keys"}

// scriptsOf gives the texts of a package's scripts by file.
func scriptsOf(t *testing.T, pkg string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "scripts", "*.lua"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no scripts: %v", pkg, err)
	}
	texts := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[file] = string(text)
	}
	return texts
}

// What runs in Redis is what stands in the .lua files, and nothing that came from
// outside: a script put together with a key in it would run what the key says. Each
// script is made once, from embedded files alone; keys and values are its arguments.
func TestScriptsAreMadeOfEmbeddedFilesAlone(t *testing.T) {
	for _, dir := range append(aboveRedisconn, "internal/redisconn") {
		made := checkScripts(t, filepath.Join(root, dir), func(where, what string) { t.Errorf("%s: %s", where, what) })
		if has := len(made) > 0; has != contains(withScripts, dir) {
			t.Errorf("%s makes the scripts %q; is it among those to be looked at?", dir, made)
		}
	}
}

// Commands and replies of go-redis are for redisconn alone, which bounds their time and knows
// of outages. The other packages hand the user's client on.
func TestCommandsOfGoRedisStayInRedisconn(t *testing.T) {
	for _, dir := range aboveRedisconn {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files in %s: %v", dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				name, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				from, _ := name.X.(*ast.Ident)
				if from != nil && from.Name == "redis" && !contains([]string{"UniversalClient", "Client", "ErrClosed"}, name.Sel.Name) {
					t.Errorf("%s uses redis.%s", file, name.Sel.Name)
				}
				return true
			})
		}
	}
}

// The look at scripts finds what it is there to find.
func TestTheLookAtScriptsFindsThoseThatArePutTogether(t *testing.T) {
	for name, body := range map[string]string{
		"a key in the text": `func f(key string) *redisconn.Script { return redisconn.NewScript("return redis.call('GET', '" + key + "')") }`,
		"Sprintf":           `func f(key string) *redisconn.Script { return redisconn.NewScript(fmt.Sprintf("%s", key)) }`,
		"a text by itself":  `func f(ctx context.Context, rdb redis.Scripter, text string) { rdb.Eval(ctx, text, nil) }`,
		"a load":            `func f(ctx context.Context, rdb redis.Scripter, text string) { rdb.ScriptLoad(ctx, text) }`,
		"a plain command":   `func f(ctx context.Context, rdb redis.UniversalClient, text string) { rdb.Do(ctx, "EVAL", text, 0) }`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "bad.go"), []byte("package bad\n"+body+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		found := 0
		checkScripts(t, dir, func(string, string) { found++ })
		if found != 1 {
			t.Errorf("%s: %d findings", name, found)
		}
	}
}

// Commands are named in the scripts, not handed in; and nothing is compiled there.
func TestScriptsRunNothingThatTheyAreGiven(t *testing.T) {
	call := regexp.MustCompile(`redis\.p?call\(`)
	named := regexp.MustCompile(`redis\.p?call\('[A-Z]+'`)
	for _, pkg := range withScripts {
		for file, text := range scriptsOf(t, pkg) {
			if n, ok := len(call.FindAllString(text, -1)), len(named.FindAllString(text, -1)); n != ok {
				t.Errorf("%s: %d of %d commands are named", file, ok, n)
			}
			if found := regexp.MustCompile(`\b(loadstring|load|dofile|require)\b\s*\(|setfenv|redis\s*\[`).FindString(text); found != "" {
				t.Errorf("%s: %s", file, found)
			}
		}
	}
}

// A message tells of a change that is made already. Where the server refuses it, the script
// goes on: otherwise its caller is told that the change has failed.
func TestNoScriptStopsAtARefusedMessage(t *testing.T) {
	stops := regexp.MustCompile(`redis\.call\('S?PUBLISH'`)
	for _, pkg := range withScripts {
		for file, text := range scriptsOf(t, pkg) {
			if stops.MatchString(text) {
				t.Errorf("%s publishes by redis.call", file)
			}
		}
	}
}

// checkScripts looks at a package's calls that send or make scripts, and returns the
// names of the scripts' texts.
func checkScripts(t *testing.T, dir string, report func(where, what string)) (made []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	var parsed []*ast.File
	embedded := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(set, file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, tree)
		noteEmbedded(tree, embedded)
	}
	for _, tree := range parsed {
		inside := "" // the function that we are in
		ast.Inspect(tree, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok {
				inside = f.Name.Name
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			where := set.Position(call.Pos()).String()
			switch name := called(call); {
			case name == "NewScript" && inside == "compose", name == "compose":
				// lock puts its scripts together from embedded files; its argument is
				// looked at where it is called.
				if name == "compose" && !fromFiles(call.Args, embedded) || name == "NewScript" && !allFixed(call.Args, embedded) {
					report(where, "a script that is not made of embedded files")
				}
				made = append(made, name)
			case name == "NewScript":
				if !fromFiles(call.Args, embedded) {
					report(where, "a script that is not made of embedded files")
				}
				made = append(made, name)
			case name == "ScriptLoad", strings.HasPrefix(name, "Eval") && !onScript(call):
				report(where, name+" on a client")
			case name == "Do" && sendsScript(call):
				report(where, "EVAL by hand")
			}
			return true
		})
	}
	return made
}

// noteEmbedded notes the variables of a file that embed a .lua file.
func noteEmbedded(tree *ast.File, embedded map[string]bool) {
	for _, decl := range tree.Decls {
		vars, ok := decl.(*ast.GenDecl)
		if !ok || vars.Tok != token.VAR {
			continue
		}
		for _, spec := range vars.Specs {
			v := spec.(*ast.ValueSpec)
			if v.Doc == nil {
				continue
			}
			for _, comment := range v.Doc.List {
				if strings.HasPrefix(comment.Text, "//go:embed scripts/") && strings.HasSuffix(comment.Text, ".lua") {
					embedded[v.Names[0].Name] = true
				}
			}
		}
	}
}

func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// fromFiles tells whether all arguments are the texts of embedded files.
func fromFiles(args []ast.Expr, embedded map[string]bool) bool {
	return !slices.ContainsFunc(args, func(arg ast.Expr) bool {
		name, ok := arg.(*ast.Ident)
		return !ok || !embedded[name.Name]
	})
}

func allFixed(args []ast.Expr, embedded map[string]bool) bool {
	return !slices.ContainsFunc(args, func(arg ast.Expr) bool { return !fixed(arg, embedded) })
}

// fixed tells whether a text is put together from embedded files, literals and the
// parameter of compose.
func fixed(text ast.Expr, embedded map[string]bool) bool {
	switch e := text.(type) {
	case *ast.BasicLit:
		return true
	case *ast.Ident:
		return embedded[e.Name] || e.Name == "text"
	case *ast.BinaryExpr:
		return fixed(e.X, embedded) && fixed(e.Y, embedded)
	case *ast.CallExpr:
		if called(e) != "Replace" {
			return false
		}
		for _, arg := range e.Args[:3] {
			if !fixed(arg, embedded) {
				return false
			}
		}
		return true
	}
	return false
}

// onScript tells whether a method is called on a *redis.Script, or on a redisconn.Conn with
// one, which takes no text. This code names them so.
func onScript(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	switch {
	case !ok:
		return true // a function of the package's own
	case isScript(f.X):
		return true
	}
	conn := nameOf(f.X)
	return slices.Contains([]string{"conn", "prompt", "patient"}, conn) && len(call.Args) > 1 && isScript(call.Args[1])
}

func isScript(e ast.Expr) bool {
	name := nameOf(e)
	return name == "script" || strings.HasSuffix(name, "Script")
}

// nameOf gives the name of a variable or field.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func sendsScript(call *ast.CallExpr) bool {
	for _, arg := range call.Args {
		if text, ok := arg.(*ast.BasicLit); ok && strings.HasPrefix(strings.ToUpper(strings.Trim(text.Value, "`\"")), "EVAL") {
			return true
		}
	}
	return false
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}
