package cache

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"reflect"
	"slices"
	"sync"

	"github.com/levee-go/levee/internal/logonce"
)

// isNotFound reports whether a loader's error says that the source has no such key.
func (c *Cache[K, V]) isNotFound(err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, ErrNotFound), errors.Is(err, sql.ErrNoRows):
		return true
	}
	return c.o.IsNotFound != nil && c.o.IsNotFound(err)
}

// isNil reports whether a value is a nil pointer, which a loader returns that has found
// nothing: a caller who has looked at the error alone would panic. Only a V that is a
// pointer's type has such values: an empty list is a value.
func isNil[V any](value *V) bool {
	v := reflect.ValueOf(value).Elem()
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// sameErrors is how many keys in a row fail with one error before the log asks whether
// that is the error of a key that does not exist.
const sameErrors = 10

// An errorRun notices a loader whose error for absent keys nobody has declared. Each
// absent key then counts as a failure of the source, and a scraper opens the breaker. It
// may be used concurrently.
type errorRun struct {
	mu   sync.Mutex // guards what follows
	text string     // of the last error
	id   string     // of the key that failed last
	keys int        // failed in a row with this text; a key that fails twice in a row counts once
}

// isNoAnswer reports whether err says that the source did not answer, by the errors of the
// network and of drivers: it says nothing of the key.
func isNoAnswer(err error) bool {
	var network net.Error // every syscall.Errno is one too
	return errors.As(err, &network) || slices.ContainsFunc(noAnswers, func(no error) bool { return errors.Is(err, no) })
}

var noAnswers = []error{
	context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
	driver.ErrBadConn, sql.ErrConnDone,
}

// failed notes that the load of id failed with err.
func (r *errorRun) failed(log *logonce.Log, id string, err error) {
	if isNoAnswer(err) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	text := err.Error()
	switch {
	case text != r.text:
		r.text, r.id, r.keys = text, id, 1
		return
	case id == r.id:
		return
	}
	r.id = id
	if r.keys++; r.keys == sameErrors {
		r.keys = 0
		log.Warn("loads of different keys fail alike: if that is the source's error for a key that does not exist, set Options.IsNotFound",
			logonce.Name("key", id), "error", err)
	}
}
