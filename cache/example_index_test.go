package cache_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/levee-go/levee/cache"
)

// A User is a row with two unique columns beside its id.
type User struct {
	ID          int64
	Slug, Email string
}

// A userTable stands for a database.
type userTable struct {
	mu   sync.Mutex
	rows map[int64]User
}

func (t *userTable) User(_ context.Context, id int64) (User, error) {
	return t.find(func(u User) bool { return u.ID == id })
}

func (t *userTable) BySlug(_ context.Context, slug string) (int64, error) {
	u, err := t.find(func(u User) bool { return u.Slug == slug })
	return u.ID, err
}

func (t *userTable) ByEmail(_ context.Context, email string) (int64, error) {
	u, err := t.find(func(u User) bool { return u.Email == email })
	return u.ID, err
}

func (t *userTable) find(is func(User) bool) (User, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, u := range t.rows {
		if is(u) {
			return u, nil
		}
	}
	return User{}, cache.ErrNotFound
}

// Change stands for a transaction: SELECT … FROM users WHERE id = … FOR UPDATE; then, with the
// row that it has locked and before the commit, what the caller wants to do; then UPDATE users
// SET slug = …, email = … WHERE id = …; and the commit.
func (t *userTable) Change(ctx context.Context, to User, beforeCommit func(ctx context.Context, old User) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := beforeCommit(ctx, t.rows[to.ID]); err != nil {
		return err // roll back
	}
	t.rows[to.ID] = to
	return nil
}

// A row that is found by slug and by e-mail too: a cache for each index, from its key to
// the id, and one from the id to the row. A Write names what changes in each of them: the new
// keys, which may be known as absent, and the old ones. Those are read inside the transaction,
// from the locked row, and named by Also: read before it, they may be others by now.
func ExampleWrite_secondaryIndex() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &userTable{rows: map[int64]User{1: {1, "ann", "ann@example.com"}}}
	users, err := cache.New(rdb, store.User, cache.Options{Name: "user"})
	if err != nil {
		log.Fatal(err)
	}
	defer users.Close()
	bySlug, err := cache.New(rdb, store.BySlug, cache.Options{Name: "user-slug"})
	if err != nil {
		log.Fatal(err)
	}
	defer bySlug.Close()
	byEmail, err := cache.New(rdb, store.ByEmail, cache.Options{Name: "user-email"})
	if err != nil {
		log.Fatal(err)
	}
	defer byEmail.Close()

	// Keys of different caches have no common order, so the row says whether it is the right one.
	find := func(slug string) (User, error) {
		id, err := bySlug.Get(ctx, slug)
		if err != nil {
			return User{}, err
		}
		u, err := users.Get(ctx, id)
		if errors.Is(err, cache.ErrNotFound) || err == nil && u.Slug != slug { // the memory of this process may be old
			fresh := cache.Reads{SkipLocal: true}
			if id, err = bySlug.With(fresh).Get(ctx, slug); err != nil {
				return User{}, err
			}
			u, err = users.With(fresh).Get(ctx, id)
		}
		if err == nil && u.Slug != slug {
			return User{}, cache.ErrNotFound // it has another one by now
		}
		return u, err
	}

	fmt.Println(find("ann"))
	_, err = find("anna")
	fmt.Println(errors.Is(err, cache.ErrNotFound)) // and that is known now

	changed := User{1, "anna", "anna@example.org"}
	err = cache.Write(ctx, func(ctx context.Context) error {
		return store.Change(ctx, changed, func(ctx context.Context, old User) error {
			return cache.Also(ctx, bySlug.Changes(old.Slug), byEmail.Changes(old.Email))
		})
	}, users.Changes(1), bySlug.Changes(changed.Slug), byEmail.Changes(changed.Email))
	fmt.Println(err)

	fmt.Println(find("anna"))
	_, err = find("ann")
	fmt.Println(errors.Is(err, cache.ErrNotFound))
	fmt.Println(byEmail.Get(ctx, "anna@example.org"))
	// Output:
	// {1 ann ann@example.com} <nil>
	// true
	// <nil>
	// {1 anna anna@example.org} <nil>
	// true
	// 1 <nil>
}
