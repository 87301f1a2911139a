package cache_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// logged gives a cache a logger, and tells it nothing else.
func logged(log *redistest.Log) func(*cache.Options) {
	return func(o *cache.Options) { o.Logger = log.Logger() }
}

// An operator reads of an outage, and of its end, but not of every read that it
// fails: the readers are served, so nobody else would tell.
func TestAnOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real"})
	source := newRows(r, 1)
	var log redistest.Log
	c := open(r, source.source(), logged(&log))
	r.eventually("it hears the others", func() bool { return c.Stats().Live })
	server.Kill()
	for range 300 {
		c.gives(r, 1, "v1")
	}
	if err := c.Invalidate(r.ctx, 1); err == nil {
		r.Error("an invalidation is confirmed by nobody")
	}
	told := []string{"redis failed", "redis does not reply", "no messages of other processes", "an invalidation is not confirmed"}
	for _, what := range told {
		log.Await(t, what)
	}
	server.Restart()
	log.Await(t, "redis replies again")
	log.Await(t, "arrive again")
	for _, line := range []string{
		`level=WARN msg="levee: redis does not reply; the caches go on without it until it does" cache=test address=` + server.Addr() + " error=",
		`level=INFO msg="levee: redis replies again" cache=test address=` + server.Addr(),
	} {
		if log.Count(line) != 1 { // with two servers, somebody would look at the wrong one
			r.Errorf("%q is not there:\n%s", line, &log)
		}
	}
	for _, what := range told {
		if n := log.Count(`msg="levee: ` + what); n != 1 {
			r.Errorf("%q is there %d times:\n%s", what, n, &log)
		}
	}
}

// A user without the rights that a cache needs gets its answers from the source
// alone. That goes on until somebody is told which rights those are.
func TestWhatRedisRefusesIsNamed(t *testing.T) {
	t.Parallel()
	const password = "correct-horse"
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source := newRows(r, 1, 2)
	for name, test := range map[string]struct{ rules, says string }{
		"scripts":  {"+@all -evalsha -eval", "evalsha"},
		"messages": {"+@all -subscribe", "subscribe"},
		"keys":     {"+@all resetkeys ~other:*", "permissions to access"}, // "one of the keys", "a key": servers differ
		"password": {"+@all resetpass >another", "WRONGPASS"},
	} {
		r.rdb.FlushAll(r.ctx) // what stands there needs no script
		rules := append([]any{"ACL", "SETUSER", "reader", "reset", "on", ">" + password, "~*", "&*"}, fields(test.rules)...)
		if err := r.rdb.Do(r.ctx, rules...).Err(); err != nil {
			r.Fatal(err)
		}
		var log redistest.Log
		rdb := server.Client(t, func(o *redis.Options) { o.Username, o.Password = "reader", password })
		c := openOn(r, rdb, source.source(), logged(&log))
		c.gives(r, 1, "v1")
		c.gives(r, 2, "v1")
		r.eventually(name+" is logged", func() bool { return log.Count("level=ERROR") > 0 || t.Failed() })
		if text := log.String(); !strings.Contains(text, test.says) || strings.Contains(text, password) {
			r.Errorf("%s: %s", name, text)
		}
	}
}

func fields(text string) (all []any) {
	for field := range strings.FieldsSeq(text) {
		all = append(all, field)
	}
	return all
}

// What a cache makes good is not seen by its callers, and what they cannot see
// stands in the log: with a key that may have come from anywhere, without values.
func TestWhatIsSurvivedIsLogged(t *testing.T) {
	key := "line\nbreak" + strings.Repeat("x", 400)
	for name, test := range map[string]struct {
		says   string
		change func(*cache.Options)
		do     func(r *rig, c *probe[string, string], broken *bool)
	}{
		"a foreign value": {"is no value of this cache", nil, func(r *rig, c *probe[string, string], _ *bool) {
			r.rdb.Set(r.ctx, valueKey(key), "secret", time.Minute)
			c.gives(r, key, "secret")
		}},
		"a large value": {"larger than MaxValue", func(o *cache.Options) { o.MaxValue = 2 }, func(r *rig, c *probe[string, string], _ *bool) {
			c.gives(r, key, "secret")
		}},
		"a value without a code": {"cannot be encoded", func(o *cache.Options) { o.Codec = failing{} },
			func(r *rig, c *probe[string, string], _ *bool) { c.gives(r, key, "secret") }},
		"an old value": {"an old value is served", func(o *cache.Options) { o.TTL, o.StaleWhileRevalidate = time.Second, -1 },
			func(r *rig, c *probe[string, string], broken *bool) {
				c.gives(r, key, "secret")
				time.Sleep(2 * time.Second)
				*broken = true
				c.gives(r, key, "secret")
			}},
		"a refresh": {"a refresh failed", func(o *cache.Options) { o.TTL = time.Second },
			func(r *rig, c *probe[string, string], broken *bool) {
				c.gives(r, key, "secret")
				time.Sleep(2 * time.Second)
				*broken = true
				c.gives(r, key, "secret")
			}},
		"a codec": {"the codec panicked", func(o *cache.Options) { o.Codec = panicking{} }, func(r *rig, c *probe[string, string], _ *bool) {
			_, _ = c.Get(r.ctx, key)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
				var log redistest.Log
				var broken bool
				c := open(r, cache.Source[string, string]{Load: func(context.Context, string) (string, error) {
					if broken {
						return "", errBroken
					}
					return "secret", nil
				}}, logged(&log), func(o *cache.Options) {
					if test.change != nil {
						test.change(o)
					}
				})
				test.do(r, c, &broken)
				log.Await(r, test.says)
				for line := range strings.Lines(log.String()) {
					if !strings.Contains(line, "cache=test") || strings.Contains(line, "secret") || strings.Contains(line, strings.Repeat("x", 200)) {
						r.Errorf("got %s", line)
					}
				}
			})
		})
	}
}

// failing and panicking are codecs that cannot encode.
type (
	failing   struct{ noDecoder }
	panicking struct{ noDecoder }
	noDecoder struct{}
)

func (failing) Marshal(any) ([]byte, error)   { return nil, errCodec }
func (panicking) Marshal(any) ([]byte, error) { panic("no") }
func (noDecoder) Unmarshal([]byte, any) error { return errCodec }

// An option that does nothing and says nothing is a promise that nobody keeps.
func TestOptionsThatNeedRedisSaySo(t *testing.T) {
	const told = "without redis these options protect no write"
	for options, change := range map[string]func(*cache.Options){
		"":             func(*cache.Options) {},
		"ReplicaLag":   func(o *cache.Options) { o.ReplicaLag = time.Second },
		"WaitReplicas": func(o *cache.Options) { o.Rebuild.WaitReplicas = 1 },
	} {
		synctest.Test(t, func(t *testing.T) {
			var log redistest.Log
			o := cache.Options{Name: "test", Logger: log.Logger()}
			change(&o)
			c := redistest.Must(cache.New(nil, loadNothing, o))
			defer c.Close()
			synctest.Wait() // a line is written by a goroutine of its own
			if n := log.Count(told); (n == 1) != (options != "") || n != log.Count("options="+options+" ") {
				t.Errorf("with %q the log says:\n%s", options, &log)
			}
		})
	}
}
