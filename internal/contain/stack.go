package contain

// stackRoom is so large that a stack of 2 or 4 KiB becomes one of 8, in which a way to Redis and back has
// its place: a stack is a power of two, with some 900 bytes in reserve. With 6 KiB most became 16.
const stackRoom = 4 << 10

// GrowStack makes room on the stack of the calling goroutine. A stack begins with 2 KiB, and
// doubles when it is full: each time, the frames that stand there are copied and their
// pointers adjusted. Hits in Redis, each on a goroutine that began with its request, spent a fifth of their
// processor time on that, 20 frames deep in go-redis. Who calls GrowStack before has few frames, which are
// copied once. Where there is room already it is a comparison.
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
