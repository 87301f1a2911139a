package outbox

import "time"

// Wait sets how long the database may take.
func (b *Outbox) Wait(patience time.Duration) { b.patience = patience }
