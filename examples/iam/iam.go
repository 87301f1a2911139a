// Package iam has a service log in to ElastiCache or MemoryDB by its IAM role: docs/cloud.md.
package iam

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// A Login says who logs in where.
type Login struct {
	Service    string // "elasticache" or "memorydb"
	Cache      string // the name of the replication group, serverless cache or cluster, in lower case; not its address
	Serverless bool   // of ElastiCache
	User       string // in ElastiCache its id, which is its name too
}

// Credentials is for CredentialsProviderContext of go-redis' options, which calls it for each new connection: it signs a
// token that is good for 15 minutes, long enough to log in once. Signing asks nobody. Only when the credentials of cfg end
// does a caller wait for new ones, so let cfg come from config.LoadDefaultConfig, which keeps them.
func (l Login) Credentials(cfg aws.Config) func(context.Context) (username, password string, err error) {
	query := url.Values{"Action": {"connect"}, "User": {l.User}, "X-Amz-Expires": {"900"}}
	if l.Serverless {
		query.Set("ResourceType", "ServerlessCache")
	}
	signer := v4.NewSigner()
	return func(ctx context.Context) (string, string, error) {
		keys, err := cfg.Credentials.Retrieve(ctx)
		if err != nil {
			return "", "", fmt.Errorf("iam: credentials for %s: %w", l.Cache, err)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+l.Cache+"/?"+query.Encode(), nil)
		if err != nil {
			return "", "", fmt.Errorf("iam: %w", err)
		}
		const sha256OfNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
		signed, _, err := signer.PresignHTTP(ctx, keys, request, sha256OfNothing, l.Service, cfg.Region, time.Now())
		if err != nil {
			return "", "", fmt.Errorf("iam: signing for %s: %w", l.Cache, err)
		}
		return l.User, strings.TrimPrefix(signed, "https://"), nil
	}
}
