package outbox

import "time"

// Wait sets how long the database may take.
func (b *Outbox) Wait(patience time.Duration) { b.patience = patience }

// MostWaiting sets how many rows may be read and not confirmed.
func (b *Outbox) MostWaiting(rows int) { b.mostWaiting = rows }
