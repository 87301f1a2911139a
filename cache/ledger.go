package cache

import (
	"context"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/cache/internal/keytext"
)

// tellLedger tells an audit.Ledger which ids a call of a writer has changed. A Write tells when it ends.
func (w *writer) tellLedger(call string, ids []string) {
	if hear := w.hears.Load(); hear != nil && call != "hold" {
		(*hear)(ids)
	}
}

// ledger returns what an audit.Ledger needs.
func (i inspector[K, V]) ledger() inside.Ledger[K, V] {
	return inside.Ledger[K, V]{
		Redis: i.c.fleet.Shared(), Local: i.c.local.Cache != nil && !i.c.local.unstoredOnly, Counts: &i.c.counts.ledger,
		Keyed: !i.c.naming.custom && keytext.Parser[K]() != nil,
		Hear: func(hear func([]string)) (stop func()) {
			if !i.c.writer.hears.CompareAndSwap(nil, &hear) {
				return nil
			}
			return func() { i.c.writer.hears.CompareAndSwap(&hear, nil) } // called again, it stops nobody else
		},
		Key: func(id string) (key K, known bool) {
			key, _, known, err := i.c.naming.parse(id)
			return key, known && err == nil
		},
		Row: i.keyOfRow, Fits: i.c.naming.unreadable(""), In: i.servedIn,
	}
}

func (i inspector[K, V]) keyOfRow(row feed.Row, columns []string) ([]K, error) {
	key, _, known, err := i.c.naming.ofRow(row, columns)
	if !known {
		return nil, err
	}
	return []K{key}, nil
}

// servedIn is servedApart for one tier.
func (i inspector[K, V]) servedIn(ctx context.Context, key K, local bool) (inside.Look[V], error) {
	return i.lookAt(key, func(id string) (e *entry[V], stored any, err error) {
		if local {
			e, stored, _ = i.servedHere(key)
			return e, stored, nil
		}
		return i.servedInRedis(ctx, id)
	})
}

func ledgerStats(n *inside.LedgerCounts) LedgerStats {
	s := LedgerStats{ // Old first, which is counted last
		Old1s: n.Old[0].Load(), Old2s: n.Old[1].Load(), Old10s: n.Old[2].Load(), Old60s: n.Old[3].Load(),
		Changes: n.Changes.Load(), Skipped: n.Skipped.Load(), Failed: n.Failed.Load(),
	}
	s.Looked1s, s.Looked2s, s.Looked10s, s.Looked60s = n.Looked[0].Load(), n.Looked[1].Load(), n.Looked[2].Load(), n.Looked[3].Load()
	return s
}
