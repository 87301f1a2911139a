package lock

import (
	_ "embed"
	"strings"

	"github.com/levee-go/levee/internal/redisconn"
)

var (
	//go:embed scripts/begin.lua
	beginLua string
	//go:embed scripts/state.lua
	stateLua string
	//go:embed scripts/queue.lua
	queueLua string
	//go:embed scripts/acquire.lua
	acquireLua string
	//go:embed scripts/acquireall.lua
	acquireAllLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/leave.lua
	leaveLua string
	//go:embed scripts/renew.lua
	renewLua string
	//go:embed scripts/inspect.lua
	inspectLua string
	//go:embed scripts/force.lua
	forceLua string
	//go:embed scripts/check.lua
	checkLua string

	acquireScript    = compose(acquireLua)
	acquireAllScript = compose(acquireAllLua)
	releaseScript    = compose(releaseLua)
	leaveScript      = compose(leaveLua)
	renewScript      = compose(renewLua)
	inspectScript    = compose(inspectLua)
	forceScript      = compose(forceLua)
	checkScript      = redisconn.NewScript(checkLua)
)

// compose makes a script of begin.lua and text, with the files that text includes.
func compose(text string) *redisconn.Script {
	text = strings.Replace(text, "-- include state.lua\n", stateLua, 1)
	return redisconn.NewScript(beginLua, strings.Replace(text, "-- include queue.lua\n", queueLua, 1))
}
