package docs

import (
	"context"
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/localcache"
)

// docs/cloud.md, the client.
func _(credentials func(context.Context) (username, password string, err error)) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      []string{"clustercfg.products.abc123.euc1.cache.amazonaws.com:6379"}, // the configuration endpoint
		TLSConfig:                  &tls.Config{MinVersion: tls.VersionTLS12},
		CredentialsProviderContext: credentials, // or Username and Password
		ContextTimeoutEnabled:      true,
		ReadTimeout:                500 * time.Millisecond,
		DialTimeout:                2 * time.Second,
		DialerRetries:              1,               // a refused connection is an error at once
		ConnMaxIdleTime:            5 * time.Minute, // less than the 350 s after which a NAT of AWS forgets a connection
	})
	defer rdb.Close()
}

// docs/kubernetes.md.
func _(rdb redis.UniversalClient, store Store, admin *http.ServeMux) error {
	shared := &localcache.Budget{MaxBytes: 128 << 20} // for all caches of the process
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product", Local: localcache.Options{Budget: shared}})
	admin.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	_ = products
	return err
}

// The manifests of the page are those that a test of examples/service parses.
func TestThePagesManifestsAreThoseOfTheExample(t *testing.T) {
	manifests, blocks := "\n"+text(t, "examples/service/kubernetes.yaml"), 0
	for _, block := range fence.FindAllStringSubmatch(text(t, "docs/kubernetes.md"), -1) {
		if block[1] != "yaml" {
			continue
		}
		if blocks++; !strings.Contains(manifests, "\n"+block[2]) {
			t.Errorf("examples/service/kubernetes.yaml does not have\n%s", block[2])
		}
	}
	if blocks < 3 {
		t.Errorf("%d blocks", blocks)
	}
}

// Nobody has time for more when something is wrong.
func TestPagesOfPlacesAreShort(t *testing.T) {
	for _, name := range []string{"docs/cloud.md", "docs/kubernetes.md"} {
		if n := len(strings.Fields(text(t, name))); n > 1200 {
			t.Errorf("%s has %d words", name, n)
		}
	}
}
