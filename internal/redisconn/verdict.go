package redisconn

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
)

// note tells the lane's Outage how an operation ended that began at began. It reports
// whether the operation should be sent again: its time passed in this process, for
// another reason than that others have all connections. Whoever waits for one of those
// has waited for long enough.
func (l *lane) note(err error, read bool, key string, began time.Time) (again bool) {
	switch {
	case l.outage == nil:
	case err == nil || answeredWithError(err, read):
		l.outage.Answered()
	case isOurs(err):
	case !read && isAnswer(err): // refused, which says nothing
	default:
		full := l.poolWasFull(err)
		again = !full && !errors.Is(err, redis.ErrClosed) && (l.neverConnected(err) || starved(time.Since(began), l.conn.timeout))
		l.outage.Missed(key, !again && !full)
	}
	return again
}

// note is the lane's note for a trip: one answer among its operations is an answer.
func (t *trip) note(err error, began time.Time) (again bool) {
	l := t.lane
	if l.outage == nil || t.leftBehind() {
		return false
	}
	for i, cmd := range t.cmds {
		if err != nil {
			break
		}
		reply := cmd.Err()
		if reply == nil || answeredWithError(reply, i < t.reads) {
			l.outage.Answered()
			return false
		}
	}
	if err == nil {
		err = t.cmds[0].Err()
	}
	return l.note(err, t.reads > 0, t.key, began)
}

// leftBehind reports whether it has been noted already that the trip is late.
func (t *trip) leftBehind() bool {
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	return t.over
}

// answeredWithError reports whether a read has its answer, though it is an error: the
// value is of another type.
func answeredWithError(err error, read bool) bool {
	return read && err != nil && redis.HasErrorPrefix(err, "WRONGTYPE")
}

// isOurs reports whether err is that of code of this process, such as the user's hooks.
func isOurs(err error) bool {
	var panicked *contain.PanicError
	return errors.As(err, &panicked) || errors.Is(err, contain.ErrGoexit)
}

// isAnswer reports whether err came from the server.
func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// poolWasFull reports whether an operation waited for one of the connections, which
// others have all.
func (l *lane) poolWasFull(err error) bool {
	return errors.Is(err, redis.ErrPoolTimeout) || hadNoSocket(err) && l.conn.client.poolIsFull()
}

// neverConnected reports whether the time of an operation passed while the first
// connections were opened, which may take long (TLS, many at once). Where there was one
// before, and another cannot be had in time, it is the server that does not answer.
func (l *lane) neverConnected(err error) bool {
	var socket *net.OpError
	if errors.As(err, &socket) && socket.Op != "dial" {
		l.outage.connected.Store(true) // one failed that was open
	}
	return hadNoSocket(err) && !l.outage.connected.Load()
}

// hadNoSocket reports whether time was up before there was a connection, or while it was
// greeted.
func hadNoSocket(err error) bool {
	var socket *net.OpError
	return !errors.As(err, &socket) && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded))
}

// starved reports whether this process is short of processors, so that an answer may
// have lain there unread: the operation took much longer than it may, or a goroutine
// that gives way does not run again soon.
func starved(took, timeout time.Duration) bool {
	if took > 2*timeout {
		return true
	}
	began := time.Now()
	runtime.Gosched()
	return time.Since(began) > timeout/5
}
