package iam_test

import (
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/examples/iam"
)

// docs/cloud.md: cfg is that of config.LoadDefaultConfig.
func _(cfg aws.Config) {
	credentials := iam.Login{Service: "elasticache", Cache: "products", User: "product-cache"}.Credentials(cfg)
	_ = redis.ClusterOptions{CredentialsProviderContext: credentials}
}
