package model

// The model has two processes, A and B, over one Redis and one database, and two keys. All that
// can change is in a state, which is a plain value: no pointers, so that two states can be
// compared. Versions of a row are 1, 2, 3; 0 is no value.
//
// There is no clock. What time does, such as the end of a lease, is a step that may come whenever
// the rules of its kind allow it.

const (
	nProcs   = 2
	nKeys    = 2
	nReaders = 4
	nWriters = 2
	nLate    = 2
	maxAgain = 1 // loads that an invalidation has overtaken, after which a load is answered without being stored
)

type state struct {
	rows    [nKeys]uint8 // the database
	replica [nKeys]uint8 // what readers find there
	keys    [nKeys]stored
	epochs  [nKeys]uint8 // in Redis: the number of Clears of the cache that a key is of
	procs   [nProcs]process
	readers [nReaders]reader
	writers [nWriters]writer
	late    [nLate]command // sent by callers who have left; each may reach Redis at any time
	left    faults         // that may still happen
	spec    spec
}

// stored is what Redis has of a key.
type stored struct {
	ver    uint8 // the value, 0: none
	marked bool  // it is expired: a fallback only
	epoch  uint8 // of the value
	lease  uint8 // the token, 0: none
	holds  uint8 // a bit for each writer, and then one for each that has returned a moment ago, see Options.ReplicaLag
	notes  uint8 // notes of holds that were lifted and not there, a bit for each writer
}

// A process is what one process knows.
type process struct {
	dead   bool
	link   uint8        // of messages, see below
	inbox  [nKeys]uint8 // messages "invalidated" under way to it
	news   [nKeys]uint8 // messages "cleared" under way to it
	known  [nKeys]uint8 // the epochs that it knows
	heard  [nKeys]bool  // they are the present ones, as far as messages say
	local  [nKeys]entry
	pend   [nKeys]pending
	clears bool // a Clear is pending
	over   bool // old behaviour: an invalidation was dropped for lack of room
}

// Phases of a link.
const (
	live    = iota
	silent  // messages are lost, and nobody knows
	noticed // for three seconds: three heartbeats are missing
)

// An entry is what the local tier has of a key.
type entry struct {
	ver    uint8
	epoch  uint8
	beside bool // it was loaded beside a writer
	old    bool // it was filled more than a second ago
}

// A pending is an invalidation that Redis has not confirmed.
type pending struct {
	on        bool
	tried     uint8
	lifts     uint8 // holds to lift with it
	ver, soft uint8 // what confirming it makes certain, see spec
}

// How far an attempt to invalidate has come.
const (
	untried = iota
	tried   // it has been sent
	asked   // and since then another writer has asked for one
)

// A reader is one Get, and the flight that it runs if it has opened one.
type reader struct {
	pc       uint8
	asked    uint8 // how often it has asked for the lease
	again    uint8 // how often its load was overtaken
	ver      uint8 // what it has read or loaded
	epoch    uint8 // of that
	fallback uint8 // the old value that it has read for itself
	parts    uint8 // of a page: the old row that it has read
	hasRead  bool
	unread   bool // Redis did not answer
	runs     bool // a flight
	mark     bool // the local tier has forgotten nothing of the key since the mark
	beside   bool // ver was loaded beside a writer
	bmark    bool // the mark from before that
	filled   bool
	fromHere bool  // ver is from the local tier
	stale    bool  // it is a page of an old row
	answered bool  // its Get, though its flight goes on
	in       uint8 // 1 + the runner whose flight it has joined
	may      bool  // it had joined when the runner last decided
	began    bool  // and when the load began
	got      got
}

// A writer is one call of Write, Invalidate, Expire, Set or Clear.
type writer struct {
	pc     uint8
	todo   uint8 // keys, a bit each, that this phase has not dealt with
	at     uint8 // 1 + the key for which Redis has been called, and what the process knows is to be forgotten
	ver    uint8 // that it has committed; 0: none
	epoch  uint8 // of what Set or Refresh stores
	again  uint8 // how often its load was overtaken
	closed bool  // it has returned without opening its keys: their holds end by themselves
	failed bool  // the transaction reported failure
	errs   uint8 // keys whose invalidation is not confirmed
}

// faults are how many of each kind may happen.
type faults struct {
	timeouts uint8 // a command or its reply is lost to its caller
	lapses   uint8 // a lease or hold ends though its owner lives: it was paused
	fails    uint8 // loads
	kills    uint8 // of processes
	breaks   uint8 // of links
	twice    uint8 // messages
}
