package docs

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

// A merge that was not finished leaves its marks in the file. A page had them for a day.
var conflict = regexp.MustCompile(`(?m)^(?:<{7} |\|{7} |={7}$|>{7} )`)

func TestNoFileHoldsTheMarksOfAMerge(t *testing.T) {
	looked := 0
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if strings.HasPrefix(entry.Name(), ".") && name != "." || entry.Name() == "bin" {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(name, ".md") && !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".lua") && !strings.HasSuffix(name, ".yml"):
			return nil
		}
		text, err := fs.ReadFile(os.DirFS(root), name)
		if at := conflict.FindIndex(text); at != nil {
			t.Errorf("%s:%d: an unfinished merge", name, 1+strings.Count(string(text[:at[0]]), "\n"))
		}
		looked++
		return err
	})
	if err != nil || looked < 100 {
		t.Errorf("%d files, %v", looked, err)
	}
}
