package bloom_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

// A message only tells of a change that is made already. If the server refuses it, as to each
// new user of Redis 7 and later, the caller is told what has been done all the same, and the
// others find it when they read the log.
func TestANotificationThatIsRefusedUndoesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	if err := s.Client(t).Do(t.Context(), "ACL", "SETUSER", "mute", "on", ">x", "resetchannels", "~*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	mute := func() *redis.Client {
		return s.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "x" })
	}
	a, b := open(t, mute(), quick), open(t, mute(), quick)
	for range 2 { // the first snapshot, and one in place of another
		rebuild(t, a, 0, 100)
		answers(t, a)
		answers(t, b)
	}
	add(t, a, 100, 200)
	redistest.Eventually(t, 30*time.Second, "the other finds them", func() bool { return missing(b, 0, 200) == 0 })
}
