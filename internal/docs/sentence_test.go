package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// afterTTL is what the pages say of a value past its TTL. When each of them said it in words of
// its own, one left a case out: that a value an hour old was served for a query of 300 ms.
const afterTTL = "For 30 s after its TTL (StaleWhileRevalidate) a value is served while it is refreshed. " +
	"After that, and up to an hour after its TTL (StaleIfError), it is served only if its load fails, is refused or outlasts the caller's deadline."

func TestWhatIsServedAfterTheTTLIsSaidInOneSentence(t *testing.T) {
	for _, file := range []string{
		"README.md", "docs/consistency.md", "docs/reference/options.md", "cache/options.go", "cache/doc.go",
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		plain := strings.NewReplacer("//", " ", "`", "").Replace(string(text))
		if !strings.Contains(strings.Join(strings.Fields(plain), " "), afterTTL) {
			t.Errorf("%s does not say: %s", file, afterTTL)
		}
	}
}
