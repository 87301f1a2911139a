package fleet

import (
	"context"
	"errors"
	"net"

	"github.com/levee-go/levee/internal/redisconn"
)

// giveUpUnknown gives up the leases of grants whose errors leave open whether they were granted.
// It ignores ErrOutage, with which nothing was sent.
func (s *store) giveUpUnknown(ctx context.Context, grants []Grant, errs []error) {
	for i, err := range errs {
		if errors.Is(err, redisconn.ErrOutage) {
			errs[i] = nil
		}
	}
	s.giveUpFailed(ctx, errs, func(i int) Lease { return grants[i].Lease })
}

// giveUpFailed gives up the leases that have errors, since they may still be held.
func (s *store) giveUpFailed(ctx context.Context, errs []error, lease func(i int) Lease) {
	var lost []Lease
	var failure error
	for i, err := range errs {
		s.logSurvived(ctx, err)
		if err != nil {
			lost, failure = append(lost, lease(i)), err
		}
	}
	if len(lost) > 0 {
		s.giveUp(ctx, lost, failure)
	}
}

// giveUp aborts, in the background, leases that may have been granted, so that other callers
// do not wait for their end. It does nothing if the server could not be dialled, or if the
// command was not sent (ErrBusy). During an outage it waits for Redis to reply, but no longer
// than Options.Lease (3 s by default): after that the lease has ended by itself, and during the
// outage no caller requests it. For the same reason giveUp does not repeat an abort that fails.
func (s *store) giveUp(ctx context.Context, leases []Lease, err error) {
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "dial" || errors.Is(err, redisconn.ErrBusy) {
		return
	}
	s.aborts.Go(func() {
		if s.outageOf(leases[0].ID).WaitUp(s.closing, s.lease) {
			s.abort(context.WithoutCancel(ctx), leases)
		}
	})
}
