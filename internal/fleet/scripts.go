package fleet

import (
	_ "embed"
	"fmt"

	"github.com/levee-go/levee/internal/redisconn"
)

var (
	//go:embed scripts/common.lua
	commonLua string
	//go:embed scripts/begin.lua
	beginLua string
	//go:embed scripts/renew.lua
	renewLua string
	//go:embed scripts/commit.lua
	commitLua string
	//go:embed scripts/abort.lua
	abortLua string
	//go:embed scripts/invalidate.lua
	invalidateLua string
	//go:embed scripts/epoch.lua
	epochLua string
	//go:embed scripts/inspect.lua
	inspectLua string
	//go:embed scripts/check.lua
	checkLua string

	beginScript      = redisconn.NewScript(commonLua, beginLua)
	renewScript      = redisconn.NewScript(renewLua)
	commitScript     = redisconn.NewScript(commonLua, commitLua)
	abortScript      = redisconn.NewScript(abortLua)
	invalidateScript = redisconn.NewScript(commonLua, invalidateLua)
	epochScript      = redisconn.NewScript(commonLua, epochLua)
	inspectScript    = redisconn.NewScript(commonLua, inspectLua)
	checkScript      = redisconn.NewScript(checkLua)
)

// unexpected returns the error for a reply that no script returns.
func unexpected(reply []any) error {
	return fmt.Errorf("unexpected reply %.60q", fmt.Sprint(reply...))
}
