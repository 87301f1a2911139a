package redisconn

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
)

// note tells the lane's Outage how a lone operation or a trip ended.
func (l *lane) note(err error, read bool, key string) {
	switch {
	case err == nil || answeredWithError(err, read):
		l.outage.Answered()
	case isOurs(err), l.conn.client.limited() && !isOfNetwork(err):
	case !read && Answered(err): // a refused script says nothing
	default:
		l.conn.unanswered()
		l.outage.Missed(key, err, l.conn.client.refused() || !waitedForSocket(err) && !lostConn(err))
	}
}

// note tells the lane's Outage how the trip ended: one reply among its operations counts as a reply.
func (t *trip) note(err error) {
	if t.leftBehind() {
		return
	}
	for i, cmd := range t.cmds {
		if err != nil {
			break
		}
		reply := cmd.Err()
		if reply == nil || answeredWithError(reply, i < t.reads) {
			t.lane.outage.Answered()
			return
		}
	}
	if err == nil {
		err = t.cmds[0].Err()
	}
	t.lane.note(err, t.reads > 0, t.key)
}

// leftBehind reports whether the trip's time was up before, which expire has told the Outage.
func (t *trip) leftBehind() bool {
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	return t.over
}

// answeredWithError reports whether a read's error is as good as a reply: the key is of
// another type.
func answeredWithError(err error, read bool) bool {
	return read && err != nil && redis.HasErrorPrefix(err, "WRONGTYPE")
}

// isOurs reports whether err comes from code of this process, such as the user's hooks, or from a lack of
// resources in it.
func isOurs(err error) bool {
	var panicked *contain.PanicError
	return errors.As(err, &panicked) || errors.Is(err, redis.ErrClosed) ||
		slices.ContainsFunc(scarce, func(what error) bool { return errors.Is(err, what) })
}

// scarce has the errors of a process that lacks a descriptor, port or memory for a connection.
var scarce = []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL}

// isOfNetwork reports whether err may come from the network, the server or a timeout.
func isOfNetwork(err error) bool {
	var way net.Error
	var code syscall.Errno
	return errors.As(err, &way) || errors.As(err, &code) || Answered(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// Answered reports whether err came from the server.
func Answered(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// waitedForSocket reports whether an operation ran out of time before it had a
// connection: all were in use, or one was being opened. Opening one may take long (TLS,
// many at once, a busy process), which says little about the server.
func waitedForSocket(err error) bool {
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) {
		return true
	}
	var socket *net.OpError
	return !errors.As(err, &socket) && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded))
}
