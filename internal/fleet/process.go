package fleet

import (
	"context"
	"slices"
	"sync"
)

// processLeases stores the leases of a group without Redis. It grants every lease; a
// flight and a refresh of the same id may both have one. An invalidation ends the leases
// of its id: a load that began before the invalidation is overtaken, and runs again.
type processLeases struct {
	mu     sync.Mutex          // guards tokens
	tokens map[string][]string // of the leases that are held, by id
}

func (*processLeases) get(_ context.Context, ids []string) []Value { return make([]Value, len(ids)) }

func (p *processLeases) begin(_ context.Context, asks []Ask) []Grant {
	p.mu.Lock()
	defer p.mu.Unlock()
	grants := make([]Grant, len(asks))
	for i, ask := range asks {
		token := newToken()
		p.tokens[ask.ID] = append(p.tokens[ask.ID], token)
		grants[i] = Grant{Verdict: Granted, Lease: Lease{ask.ID, token}}
	}
	return grants
}

func (*processLeases) renew(context.Context, []Lease) {}

func (p *processLeases) commit(_ context.Context, values []Publication) []Outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	outcomes := make([]Outcome, len(values))
	for i, value := range values {
		outcomes[i].Published = p.end(value.Lease)
	}
	return outcomes
}

func (p *processLeases) abort(_ context.Context, leases []Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lease := range leases {
		p.end(lease)
	}
}

// end ends a lease and reports whether it was still held. The caller holds p.mu.
func (p *processLeases) end(lease Lease) bool {
	tokens := p.tokens[lease.ID]
	i := slices.Index(tokens, lease.token)
	switch {
	case i < 0:
		return false
	case len(tokens) == 1:
		delete(p.tokens, lease.ID)
	default:
		p.tokens[lease.ID] = slices.Delete(tokens, i, i+1)
	}
	return true
}

func (p *processLeases) set(ctx context.Context, values []Publication) error {
	ids := make([]string, len(values))
	for i, v := range values {
		ids[i] = v.Lease.ID
	}
	return p.invalidate(ctx, ids, holds{})
}

func (p *processLeases) claim(ctx context.Context, ids []string) []Grant {
	_ = p.invalidate(ctx, ids, holds{})
	asks := make([]Ask, len(ids))
	for i, id := range ids {
		asks[i].ID = id
	}
	return p.begin(ctx, asks)
}

func (p *processLeases) replace(ctx context.Context, values []Publication) []Outcome {
	return p.commit(ctx, values)
}

func (p *processLeases) invalidate(_ context.Context, ids []string, _ holds) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		delete(p.tokens, id)
	}
	return nil
}
