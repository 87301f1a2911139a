package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// afterTTL is what the pages say of a value past its TTL. When each of them said it in words of
// its own, one left a case out: that a value an hour old was served for a query of 300 ms.
const afterTTL = "After its TTL a value is served for StaleWhileRevalidate (30 s) while it is refreshed, and then, " +
	"up to StaleIfError (1 h) after the TTL, only if its load fails or is refused, or when the caller's own deadline comes."

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
