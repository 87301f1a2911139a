package fleet

import (
	_ "embed"

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

	beginScript      = redisconn.NewScript(commonLua, beginLua)
	renewScript      = redisconn.NewScript(renewLua)
	commitScript     = redisconn.NewScript(commonLua, commitLua)
	abortScript      = redisconn.NewScript(abortLua)
	invalidateScript = redisconn.NewScript(commonLua, invalidateLua)
	epochScript      = redisconn.NewScript(commonLua, epochLua)
)
