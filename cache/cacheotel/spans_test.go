package cacheotel_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheotel"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

// hasAttributes fails the test unless a span has these attributes, and none of the others.
func hasAttributes(t *testing.T, attributes []attribute.KeyValue, want []attribute.KeyValue, others ...attribute.Key) {
	t.Helper()
	got := attribute.NewSet(attributes...)
	for _, kv := range want {
		if value, _ := got.Value(kv.Key); value != kv.Value {
			t.Errorf("%s is %q, want %q", kv.Key, value.String(), kv.Value.String())
		}
	}
	for _, key := range others {
		if got.HasValue(key) {
			t.Errorf("it has %s: %v", key, attributes)
		}
	}
}

// Of a batch the operation begins with PIPELINE; a single read has no size. db.* is for calls of a database alone.
func TestReadsHaveTheAttributesOfTheConventions(t *testing.T) {
	r := newRig(t)
	c := r.open(cache.Source[string, string]{Load: func(context.Context, string) (string, error) { return "lamp", nil }})
	r.within("GET /", func(ctx context.Context) { _ = redistest.Must(c.Get(ctx, "secret-1")) })
	_, spans := r.tree()
	hasAttributes(t, spans["cache.read"].Attributes,
		[]attribute.KeyValue{semconv.DBSystemNameRedis, semconv.DBOperationName("GETRANGE")}, "db.operation.batch.size", "error.type", "db.query.text")
	hasAttributes(t, spans["cache.load"].Attributes, []attribute.KeyValue{attribute.String("levee.cache", "product")}, "db.system.name")
	if kind := spans["cache.load"].SpanKind; kind != trace.SpanKindInternal {
		t.Errorf("a load is %s", kind)
	}
	r.exporter.Reset()
	r.within("GET /", func(ctx context.Context) { _ = redistest.Must(c.GetMany(ctx, []string{"secret-1", "secret-2"})) })
	_, spans = r.tree()
	hasAttributes(t, spans["cache.read"].Attributes,
		[]attribute.KeyValue{semconv.DBOperationName("PIPELINE GETRANGE"), semconv.DBOperationBatchSize(2)}, "levee.keys")
}

// What Redis replies in place of a value has its prefix as the status.
func TestAnErrorOfRedisHasItsPrefix(t *testing.T) {
	r := newRig(t)
	if err := r.server.Client(t).Do(t.Context(), "ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all", "-getrange").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := r.server.Client(t, func(o *redis.Options) { o.Username, o.Password = "shop", "secret" })
	c := redistest.Must(cache.New(rdb, func(context.Context, string) (string, error) { return "lamp", nil }, cache.Options{
		Name: "product", Local: localcache.Options{MaxBytes: -1}, RedisTimeout: 5 * time.Second, Hooks: cacheotel.Hooks(r.provider),
	}))
	t.Cleanup(func() { _ = c.Close() })
	r.within("GET /", func(ctx context.Context) { _ = redistest.Must(c.Get(ctx, "secret-1")) })
	_, spans := r.tree()
	hasAttributes(t, spans["cache.read"].Attributes, []attribute.KeyValue{semconv.ErrorTypeKey.String("NOPERM"), semconv.DBResponseStatusCode("NOPERM")})
}
