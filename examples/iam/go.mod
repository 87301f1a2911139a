module github.com/levee-go/levee/examples/iam

go 1.26.0

require (
	github.com/aws/aws-sdk-go-v2 v1.48.0
	github.com/redis/go-redis/v9 v9.23.0
)

require (
	github.com/aws/smithy-go v1.28.9 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
