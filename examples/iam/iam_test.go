package iam

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

const secretKey = "a key that only IAM and the service know"

func config() aws.Config {
	return aws.Config{Region: "eu-central-1", Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "AKID", SecretAccessKey: secretKey, SessionToken: "of a role"}, nil
	})}
}

// The server checks a token as AWS documents Signature Version 4 for a query string.
func TestATokenHasTheSignatureThatTheServerComputes(t *testing.T) {
	for _, login := range []Login{
		{Service: "elasticache", Cache: "products", User: "product-cache"},
		{Service: "elasticache", Cache: "products", User: "product-cache", Serverless: true},
		{Service: "memorydb", Cache: "products", User: "product-cache"},
	} {
		user, token, err := login.Credentials(config())(t.Context())
		if user != "product-cache" || err != nil {
			t.Fatal(user, err)
		}
		path, query, _ := strings.Cut(token, "?")
		values, err := url.ParseQuery(query)
		if err != nil || path != "products/" {
			t.Fatal(token, err)
		}
		then, err := time.Parse("20060102T150405Z", values.Get("X-Amz-Date"))
		if err != nil || time.Since(then) > time.Minute {
			t.Errorf("%v: signed at %v, %v", login, then, err)
		}
		scope := then.Format("20060102") + "/eu-central-1/" + login.Service + "/aws4_request"
		want := url.Values{
			"Action": {"connect"}, "User": {"product-cache"}, "X-Amz-Expires": {"900"}, "X-Amz-Security-Token": {"of a role"},
			"X-Amz-Algorithm": {"AWS4-HMAC-SHA256"}, "X-Amz-Credential": {"AKID/" + scope}, "X-Amz-Date": values["X-Amz-Date"], "X-Amz-SignedHeaders": {"host"},
		}
		if login.Serverless {
			want.Set("ResourceType", "ServerlessCache")
		}
		text := strings.ReplaceAll(want.Encode(), "+", "%20")
		signature := sign("AWS4"+secretKey, scope, "AWS4-HMAC-SHA256\n"+values.Get("X-Amz-Date")+"\n"+scope+"\n"+
			hash("GET\n/\n"+text+"\nhost:products\n\nhost\n"+hash("")))
		want.Set("X-Amz-Signature", signature)
		if got := values.Encode(); got != want.Encode() {
			t.Errorf("%+v:\ngot  %s\nwant %s", login, got, want.Encode())
		}
	}
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// sign derives the key for a scope from the secret one, and signs text.
func sign(secret, scope, text string) string {
	key := []byte(secret)
	for _, part := range append(strings.Split(scope, "/"), text) {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return hex.EncodeToString(key)
}

func TestWithoutARoleTheErrorSaysWhy(t *testing.T) {
	gone := errors.New("no role here")
	cfg := aws.Config{Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, gone })}
	if _, _, err := (Login{Cache: "products"}).Credentials(cfg)(t.Context()); !errors.Is(err, gone) || !strings.Contains(err.Error(), "products") {
		t.Error(err)
	}
}
