package cacheotel

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/levee-go/levee/cache"
)

// Hooks returns hooks that make spans of reads of Redis, rebuilds, waits, loads and writes,
// within spans that are recording:
//
//	cache.read        one read of Redis, or one pipeline of a GetMany
//	cache.rebuild     a key that Redis did not have, from there to its answer
//	  cache.lease_wait  the wait for the load of another process
//	  cache.load        the loader; its own spans are beneath it
//	cache.wait        the wait for another caller of the process that reads or loads the key
//	cache.write       Write, from its hold to its invalidation
//	  cache.hold        Redis closes the keys to publication
//	  cache.tx          the transaction; its own spans are beneath it
//	  cache.invalidate  as outside of a Write
//	cache.invalidate, cache.set, cache.clear, cache.announce
//
// A cache.wait, and a cache.rebuild that another one's load has served, has a link to that
// cache.load. A cache.load for several keys or callers is beneath the rebuild of one of them. An
// error is the status of its span; a key that does not exist is not an error.
//
// A cache.read is a client span with the attributes of the semantic conventions for Redis: db.system.name,
// db.operation.name, db.operation.batch.size of a batch, and after an error error.type and db.response.status_code.
// All others are internal, with error.type. Attributes of levee's own are levee.cache, levee.keys, levee.hits and
// levee.background. docs/monitoring.md says where the conventions are not followed, and why.
//
// The hooks may be called concurrently and need not be closed. You can give one Hooks to any
// number of caches: each span has the name of its cache as levee.cache.
func Hooks(from trace.TracerProvider) cache.Hooks {
	t := tracer{from.Tracer(scope)}
	return cache.Hooks{
		Read:       t.reads,
		FlightWait: t.hook("cache.wait"),
		Rebuild:    t.hook(rebuild),
		LeaseWait:  t.hook("cache.lease_wait"),
		Load:       t.hook(load),
		Write:      t.writes,
	}
}

const (
	rebuild = "cache.rebuild"
	load    = "cache.load"
)

type tracer struct{ trace.Tracer }

// reads is the hook for spans of reads. By the convention, the operation of a batch begins with PIPELINE.
func (t tracer) reads(ctx context.Context, op cache.Op) (context.Context, func(cache.Outcome)) {
	command := "GETRANGE"
	if op.Keys > 1 {
		command = "PIPELINE " + command
	}
	return t.hook("cache.read", semconv.DBSystemNameRedis, semconv.DBOperationName(command))(ctx, op)
}

// hook makes the hook for spans of one name.
func (t tracer) hook(name string, attributes ...attribute.KeyValue) cache.Hook {
	kind := trace.SpanKindInternal
	if len(attributes) > 0 {
		kind = trace.SpanKindClient
	}
	return func(ctx context.Context, op cache.Op) (context.Context, func(cache.Outcome)) {
		if !trace.SpanFromContext(ctx).IsRecording() {
			return ctx, nil
		}
		ctx, span := t.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
		span.SetAttributes(attribute.String("levee.cache", op.Cache))
		if op.Keys > 1 { // the convention has no size for a batch of one, and none for what is no call of a database
			size := attribute.Int("levee.keys", op.Keys)
			if kind == trace.SpanKindClient {
				size = semconv.DBOperationBatchSize(op.Keys)
			}
			span.SetAttributes(size)
		}
		if op.Background {
			span.SetAttributes(attribute.Bool("levee.background", true))
		}
		if name == rebuild || name == load {
			ctx = context.WithValue(ctx, within(name), span)
		}
		return ctx, func(o cache.Outcome) {
			defer span.End()
			linkTo(o.Load, span)
			if kind == trace.SpanKindClient {
				span.SetAttributes(attribute.Int("levee.hits", o.Hits))
			}
			if o.Err != nil {
				span.SetStatus(codes.Error, short(o.Err))
				span.SetAttributes(typesOf(o.Err)...)
			}
		}
	}
}

// writes is the hook for spans of writers, whose names contain the writer's call.
func (t tracer) writes(ctx context.Context, op cache.Op) (context.Context, func(cache.Outcome)) {
	return t.hook("cache."+op.Call)(ctx, op)
}

// within is the context key of the span with this name that a context derives from.
type within string

// linkTo links a span to the load that served it, if that has a span and is not beneath it.
func linkTo(by context.Context, span trace.Span) {
	if by == nil || by.Value(within(rebuild)) == span {
		return
	}
	if served, ok := by.Value(within(load)).(trace.Span); ok {
		span.AddLink(trace.Link{SpanContext: served.SpanContext()})
	}
}

// short returns the first line of an error. The error of a panic has the stack on the other
// lines.
func short(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// typesOf returns the attributes of an error: error.type, and for an error that Redis has replied, its prefix, such as
// NOPERM, which by the convention is both.
func typesOf(err error) []attribute.KeyValue {
	var reply redis.Error
	if errors.As(err, &reply) {
		if prefix, _, _ := strings.Cut(reply.Error(), " "); prefix == strings.ToUpper(prefix) {
			return []attribute.KeyValue{semconv.ErrorTypeKey.String(prefix), semconv.DBResponseStatusCode(prefix)}
		}
	}
	return []attribute.KeyValue{semconv.ErrorTypeKey.String(typeOf(err))}
}

// typeOf returns the value of error.type, one of few.
func typeOf(err error) string {
	switch {
	case errors.Is(err, cache.ErrOverloaded):
		return "overloaded"
	case errors.Is(err, cache.ErrLoadTimeout), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return semconv.ErrorType(err).Value.AsString()
}
