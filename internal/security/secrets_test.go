package security

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/lock"
)

// spelling is a codec that fails as codecs do, and once with a panic.
type spelling struct{ fail error }

func (s *spelling) Marshal(v any) ([]byte, error) { return []byte(fmt.Sprint(v)), nil }

func (s *spelling) Unmarshal([]byte, any) error {
	if s.fail == nil {
		panic("cannot spell")
	}
	return s.fail
}

// Whatever goes wrong, a value of the database and the password of Redis do not come
// to stand in a log or an error, and a key there is short and on one line.
func TestNothingSecretIsTold(t *testing.T) {
	t.Parallel()
	const password, value = "hunter2-password", "classified-value"
	s := redistest.Start(t)
	ctx := t.Context()
	var log redistest.Log // what is logged may still come
	logger := log.Logger()
	var told []string
	tell := func(err error) {
		if err != nil {
			told = append(told, err.Error())
		}
	}
	for _, login := range []string{"", "nobody"} { // that user is not known there
		rdb := s.Client(t, func(o *redis.Options) { o.Username, o.Password = login, password })
		if login == "" {
			rdb = s.Client(t)
		}
		codec := &spelling{fail: errors.New("cannot read it")}
		c, err := cache.New(rdb, func(_ context.Context, key string) (string, error) {
			if strings.HasPrefix(key, "panic") {
				panic("no such page")
			}
			return value, nil
		}, cache.Options{
			Name: "product", Codec: codec, Logger: logger, RedisTimeout: 5 * time.Second, Local: localcache.Options{MaxBytes: -1},
		})
		if err != nil {
			t.Fatal(err)
		}
		long := strings.Repeat("key\nforged=line ", 20)
		for range 3 {
			for _, key := range []string{"1", "panic", long, strings.Repeat(long, 100)} {
				tell(c.Set(ctx, key, value))
				_, err := c.Get(ctx, key)
				tell(err)
				tell(s.Client(t).Set(ctx, keys.OfCache("product").Value(0, key), "Lv"+value, time.Minute).Err())
				_, err = c.Get(ctx, key)
				tell(err)
				tell(c.Invalidate(ctx, key))
				tell(c.Write(ctx, []string{key}, func(context.Context) error { return nil }))
			}
			_, err := c.GetMany(ctx, []string{"panic" + long})
			tell(err)
			codec.fail = nil
		}
		_ = c.Close()

		l, err := lock.New(rdb, lock.Options{Logger: logger, Lease: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		held, err := l.Lock(short, long)
		tell(err)
		if held != nil {
			_, err = l.TryLock(short, long)
			tell(err)
		}
		cancel()
		_ = l.Close()

		short, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
		f, err := bloom.Open(short, rdb, bloom.Options{Name: "product", Capacity: 100, Secret: []byte(password + password), Logger: logger})
		tell(err)
		if f != nil {
			tell(f.Add(short, value))
			_ = f.Close()
		}
		cancel()
	}
	if len(told) < 10 {
		t.Errorf("only %d errors: too little went wrong", len(told))
	}
	for _, text := range append(told, strings.Split(log.String(), "\n")...) {
		for _, secret := range []string{password, value} {
			if strings.Contains(text, secret) {
				t.Errorf("%q is told: %.300s", secret, text)
			}
		}
		if strings.Contains(text, "key\nforged") {
			t.Errorf("a key breaks the line: %.300q", text)
		}
	}
}
