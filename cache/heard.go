package cache

import (
	"context"
	"time"

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
	id, err := i.c.naming.ofRow(row, columns)
	if err != nil {
		return nil, err
	}
	if key, _, known, err := i.c.naming.parse(id); known && err == nil {
		return []K{key}, nil
	}
	return nil, nil // too long
}

// servedIn is servedApart for one tier.
func (i inspector[K, V]) servedIn(ctx context.Context, key K, local bool) (look inside.Look[V], err error) {
	if look.ID, err = i.c.naming.id(key); err != nil {
		return look, err
	}
	var e *entry[V]
	now := time.Now()
	if local {
		held, ok := i.c.local.Inspect(key)
		switch {
		case !ok || held.Left == 0:
			return look, nil
		case held.Null:
			look.There, look.Null, look.Stored = true, true, held.Filled
			return look, nil
		}
		e = held.Value
	} else {
		value := i.c.fleet.GetOne(ctx, look.ID)
		if value.Err != nil || len(value.Data) == 0 {
			return look, named(value.Err)
		}
		var ok bool
		if e, ok = i.c.values.format.decode(look.ID, value.Data); !ok {
			return look, nil
		}
	}
	if e, look.Stored, _ = i.fresh(e, now); e == nil {
		return look, nil
	}
	if look.There, look.Null = true, e.null; !e.null {
		look.Cached, look.Age = i.c.values.own(e), e.age(now)
	}
	return look, nil
}

func ledgerStats(n *inside.LedgerCounts) LedgerStats {
	s := LedgerStats{ // Old first, which is counted last
		Old1s: n.Old[0].Load(), Old2s: n.Old[1].Load(), Old10s: n.Old[2].Load(), Old60s: n.Old[3].Load(),
		Changes: n.Changes.Load(), Skipped: n.Skipped.Load(), Failed: n.Failed.Load(),
	}
	s.Looked1s, s.Looked2s, s.Looked10s, s.Looked60s = n.Looked[0].Load(), n.Looked[1].Load(), n.Looked[2].Load(), n.Looked[3].Load()
	return s
}
