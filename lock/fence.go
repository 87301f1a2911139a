package lock

import (
	"context"

	"github.com/levee-go/levee/internal/fence"
)

func init() {
	fence.Raise = func(ctx context.Context, lease any, least int64) error {
		s := lease.(*Lease)
		return s.locker.raiseFence(ctx, s.acq.grants[0], least)
	}
}
