package redisconn

import (
	"reflect"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A registry has values that the users of one client share, each as long as it has a user.
// The client is part of K. The users of a client that cannot be a map key share nothing.
type registry[K comparable, T any] struct {
	mu      sync.Mutex // guards what follows
	entries map[K]*shared[T]
}

type shared[T any] struct {
	value T
	users int
}

// open adds a user to the value of name, which make makes for the first user, and returns it.
func (r *registry[K, T]) open(name K, client redis.UniversalClient, make func() T) T {
	if !reflect.ValueOf(client).Comparable() {
		return make()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.entries[name]
	if s == nil {
		s = &shared[T]{value: make()}
		if r.entries == nil {
			r.entries = map[K]*shared[T]{}
		}
		r.entries[name] = s
	}
	s.users++
	return s.value
}

// release removes a user; each user calls it once. It reports true for the last, who has to
// end the value.
func (r *registry[K, T]) release(name K, client redis.UniversalClient) (last bool) {
	if !reflect.ValueOf(client).Comparable() {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.entries[name]
	s.users--
	if s.users == 0 {
		delete(r.entries, name)
	}
	return s.users == 0
}
