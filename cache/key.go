package cache

import (
	"encoding"
	"errors"
	"fmt"
	"iter"
	"reflect"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/keytext"
)

// naming turns keys into ids, the texts by which processes share keys, and texts back into keys.
type naming[K comparable] struct {
	text    func(K) (string, error)
	custom  bool // text is Source.Key: an id cannot be turned back into its key
	longest int  // Options.MaxKey
}

func newNaming[K comparable](custom func(K) string, longest int) (naming[K], error) {
	if custom != nil {
		return naming[K]{func(key K) (string, error) { return custom(key), nil }, true, longest}, nil
	}
	text, err := keytext.Of[K]()
	if err != nil {
		return naming[K]{}, fmt.Errorf("cache: Source.Key is needed for keys of type %s: %w", reflect.TypeFor[K](), err)
	}
	return naming[K]{text, false, longest}, nil
}

// id returns the id of key. It returns an error for an id that is too long.
func (n *naming[K]) id(key K) (string, error) {
	id, err := n.text(key)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	if err = n.fits(id); err != nil {
		return "", err
	}
	return id, nil
}

func (n *naming[K]) fits(id string) error {
	if len(id) > n.longest {
		return fmt.Errorf("%w: %d bytes, more than MaxKey %d: %.64q", ErrInvalidKey, len(id), n.longest, id)
	}
	return nil
}

// ids returns the ids of all keys, or the error of the first that has none.
func (n *naming[K]) ids(all []K) ([]string, error) {
	ids := make([]string, len(all))
	for i, key := range all {
		id, err := n.id(key)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}

// seq returns the ids of all.
func (n *naming[K]) seq(all iter.Seq2[K, error]) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for key, err := range all {
			id := ""
			if err == nil {
				id, err = n.id(key)
			}
			if !yield(id, err) {
				return
			}
		}
	}
}

// parse returns the id of the key that text names, and the key itself if known is true. The key
// is not known if there is a Source.Key, or if K has a MarshalText and no UnmarshalText.
func (n *naming[K]) parse(text string) (key K, id string, known bool, err error) {
	if parse := keytext.Parser[K](); !n.custom && parse != nil {
		if key, err = parse(text); err != nil {
			return key, "", false, fmt.Errorf("%w: %.64q: %w", ErrInvalidKey, text, err)
		}
		id, err = n.id(key) // "007" is the key 7
		return key, id, err == nil, err
	}
	return key, text, false, n.fits(text)
}

// unreadable returns an error if a column of table cannot be read as a key.
func (n *naming[K]) unreadable(table string) error {
	t := reflect.TypeFor[K]()
	composed := (t.Kind() == reflect.Struct || t.Kind() == reflect.Array) && !reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	if n.custom || isBytes[K]() || keytext.Parser[K]() != nil && !composed {
		return nil
	}
	return fmt.Errorf("cache: keys of type %s are not made of a column: give the Route of table %q a func", t, table)
}

// isBytes reports whether K is an array of bytes, such as a UUID.
func isBytes[K comparable]() bool {
	t := reflect.TypeFor[K]()
	return t.Kind() == reflect.Array && t.Elem().Kind() == reflect.Uint8
}

// ofRow returns a row's primary key and its id, as parse does. The column may hold as bytes what a program
// writes as text, or another text of the same number. A key that is too long is not known.
func (n *naming[K]) ofRow(row feed.Row, columns []string) (key K, id string, known bool, err error) {
	if len(columns) != 1 {
		return key, "", false, fmt.Errorf("its primary key has %d columns, and only one of a single column is a key by itself: give Route a func", len(columns))
	}
	if raw, ok := row[columns[0]].([]byte); ok && !n.custom && isBytes[K]() {
		if array := reflect.ValueOf(&key).Elem(); len(raw) == array.Len() {
			reflect.Copy(array, reflect.ValueOf(raw))
			id, err = n.id(key)
			return key, id, err == nil, err
		}
	}
	text, err := row.Text(columns[0])
	if err != nil {
		return key, "", false, err
	}
	if !n.custom && keytext.Parser[K]() == nil {
		return key, "", false, fmt.Errorf("column %q has %d bytes, and a key is a %s", columns[0], len(text), reflect.TypeFor[K]())
	}
	key, id, known, err = n.parse(text)
	if errors.Is(err, ErrInvalidKey) && len(text) > n.longest {
		return key, text, false, nil
	}
	return key, id, known, err
}
