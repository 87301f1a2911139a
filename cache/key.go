package cache

import (
	"context"
	"fmt"
	"reflect"

	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/cache/internal/keytext"
)

// keyFunc returns the function that turns keys into ids, the texts by which processes share keys.
// The function returns an error for an id that is too long.
func keyFunc[K comparable](custom func(K) string, longest int) (func(K) (string, error), error) {
	text := func(key K) (string, error) { return custom(key), nil }
	if custom == nil {
		var err error
		if text, err = keytext.Of[K](); err != nil {
			return nil, fmt.Errorf("cache: Source.Key is needed for keys of type %s: %w", reflect.TypeFor[K](), err)
		}
	}
	return func(key K) (string, error) {
		id, err := text(key)
		switch {
		case err != nil:
			return "", fmt.Errorf("%w: %w", ErrInvalidKey, err)
		case len(id) > longest:
			return "", fmt.Errorf("%w: %d bytes, more than MaxKey %d: %.64q", ErrInvalidKey, len(id), longest, id)
		}
		return id, nil
	}, nil
}

// byTexts returns a function that calls do with the ids of keys that are given as texts.
func (c *Cache[K, V]) byTexts(do func(ctx context.Context, ids []string) error) func(ctx context.Context, texts []string) error {
	return func(ctx context.Context, texts []string) error {
		if c.closed() {
			return ErrClosed
		}
		ids := make([]string, len(texts))
		for i, text := range texts {
			_, id, _, err := c.keyOf(text)
			if err != nil {
				return err
			}
			ids[i] = id
		}
		return do(context.WithoutCancel(ctx), ids)
	}
}

func (c *Cache[K, V]) refreshTexts(ctx context.Context, texts []string) error {
	keys := make([]K, len(texts))
	for i, text := range texts {
		key, _, known, err := c.keyOf(text)
		if err != nil {
			return err
		}
		if !known {
			return inside.ErrNoKey
		}
		keys[i] = key
	}
	return c.Refresh(ctx, keys...)
}

// keyOf returns the id of the key that text names, and the key itself if known is true. The key
// is not known if there is a Source.Key, or if K has a MarshalText and no UnmarshalText.
func (c *Cache[K, V]) keyOf(text string) (key K, id string, known bool, err error) {
	id = text
	if parse := keytext.Parser[K](); c.source.Key == nil && parse != nil {
		if key, err = parse(text); err != nil {
			return key, "", false, fmt.Errorf("%w: %.64q: %w", ErrInvalidKey, text, err)
		}
		id, err = c.id(key) // "007" is the key 7
		return key, id, err == nil, err
	}
	if len(id) > c.o.MaxKey {
		return key, "", false, fmt.Errorf("%w: %d bytes, more than MaxKey %d", ErrInvalidKey, len(id), c.o.MaxKey)
	}
	return key, id, false, nil
}
