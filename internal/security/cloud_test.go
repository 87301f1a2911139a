package security

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

// cloudUser returns the access string of docs/cloud.md, for a cache on a cluster.
func cloudUser(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "cloud.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```access-string\n")
	text, _, ok := strings.Cut(rest, "\n```")
	if !ok {
		t.Fatal("docs/cloud.md has no access string")
	}
	return strings.Fields(text)
}

// The access string of docs/cloud.md is that of SECURITY.md, without its password, as providers want it.
func TestTheAccessStringOfTheCloudIsThatOfTheRules(t *testing.T) {
	want := slices.Concat(users(t)["product-cache"].rules, strings.Fields(strings.Join(block(t, "acl-cluster"), " ")))
	want = slices.DeleteFunc(want, func(rule string) bool { return strings.HasPrefix(rule, ">") })
	if got := cloudUser(t); !slices.Equal(got, want) {
		t.Errorf("docs/cloud.md has\n%s\nSECURITY.md\n%s", strings.Join(got, " "), strings.Join(want, " "))
	}
}

// As far as it can be played here: a cluster that speaks TLS, a user with the access string, and tokens that a provider of
// credentials makes for each connection.
func TestTheAccessStringOfTheCloudIsEnoughOnAClusterWithTLS(t *testing.T) {
	t.Parallel()
	nodes, addrs, config := redistest.ClusterTLS(t)
	for _, node := range nodes.Nodes {
		rules := append([]string{">token"}, cloudUser(t)...)
		if err := node.Client(t).ACLSetUser(t.Context(), "product-cache", rules...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var tokens atomic.Int64
	open := func() redis.UniversalClient {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: addrs, TLSConfig: config, ContextTimeoutEnabled: true, DisableIdentity: true,
			CredentialsProviderContext: func(context.Context) (string, string, error) {
				tokens.Add(1)
				return "product-cache", "token", nil
			},
		})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	useCache(t, open)
	if tokens.Load() < 3 {
		t.Errorf("the provider was called %d times", tokens.Load())
	}
	for _, node := range nodes.Nodes {
		admin := node.Client(t)
		for _, refusal := range denied(t, admin) {
			t.Error(refusal)
		}
		for _, client := range strings.Split(strings.TrimSpace(admin.ClientList(t.Context()).Val()), "\n") {
			_, port, _ := strings.Cut(node.Addr(), ":")
			if strings.Contains(client, "user=product-cache") && strings.Contains(client, "laddr=127.0.0.1:"+port+" ") {
				t.Errorf("a connection without TLS: %s", client)
			}
		}
	}
	if err := checkCache(t, open()); err != nil { // tries INFO, which the cache needs for a warning alone
		t.Errorf("Check: %v", err)
	}
}
