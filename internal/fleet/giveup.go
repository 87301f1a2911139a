package fleet

import (
	"context"
	"errors"
	"net"

	"github.com/levee-go/levee/internal/redisconn"
)

// giveUpUnknown gives up the leases of grants that have errors. During an outage nothing was
// sent.
func (s *store) giveUpUnknown(ctx context.Context, grants []Grant, errs []error) {
	for i, err := range errs {
		if errors.Is(err, redisconn.ErrOutage) {
			errs[i] = nil
		}
	}
	s.giveUpFailed(ctx, errs, func(i int) Lease { return grants[i].Lease })
}

// giveUpFailed gives up the leases that have errors: they may stand.
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

// giveUp aborts leases that may or may not have been granted, without holding up the
// caller: others would wait for their end. It does nothing if the server could not
// be dialled. During an outage it waits for Redis to answer, for at most one lease: after
// that the lease has ended by itself. For the same reason an abort that fails is not tried
// again. A lease that stands by mistake makes others wait for three seconds at most, and
// during an outage nobody asks for leases.
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
