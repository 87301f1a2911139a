package cache

import (
	"log/slog"

	"github.com/levee-go/levee/internal/logonce"
)

// ForgetLoggedOwnerless has Writes without a cache logged at once, and not a minute later.
func ForgetLoggedOwnerless() { ownerless = logonce.New(slog.Default(), "levee: ") }
