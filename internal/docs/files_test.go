package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program that was built in its directory and committed by an oversight is twenty megabytes in every clone.
func TestNoFileIsLarge(t *testing.T) {
	const most = 512 << 10
	root := filepath.Join("..", "..")
	list, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("not a clone: %v", err)
	}
	for _, name := range strings.Split(strings.TrimRight(string(list), "\x00"), "\x00") {
		if info, err := os.Stat(filepath.Join(root, name)); err == nil && info.Size() > most {
			t.Errorf("%s has %d KB, more than %d", name, info.Size()>>10, most>>10)
		}
	}
}
