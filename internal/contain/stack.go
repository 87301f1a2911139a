package contain

// stackRoom is what a way to Redis and back takes of a stack, without the frames of user code.
const stackRoom = 6 << 10

// GrowStack makes room on the stack of the calling goroutine. A stack begins with 2 KiB, and
// doubles when it is full: each time, the frames that stand there are copied and their
// pointers adjusted. A goroutine that began with a request, and goes 20 frames deep into
// go-redis, spent a fifth of its processor time on that. Here few frames stand yet, and it is
// copied once. Where there is room already this is a comparison.
//
//	go test -run '^$' -bench 'RedisHits/fresh' ./cache
func GrowStack() { frame(false) }

// frame needs a stack of stackRoom whatever it is told, and clears that much if told to.
//
//go:noinline
func frame(used bool) {
	if used {
		var room [stackRoom]byte
		use(&room)
	}
}

//go:noinline
func use(room *[stackRoom]byte) { room[0]++ }
