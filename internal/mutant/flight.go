package mutant

// These take the join rule of internal/flight out, for all packages whose tests have to see it.
var (
	// JoinAny gives a flight's result to all who joined it, however late.
	JoinAny = Edit{File: "internal/flight/flight.go", Old: "if number <= f.decidedAt {", New: "if true {"}

	// LeaveEarly has nobody join a flight from just before its value is published on, in
	// mutexrebuild.Rebuild. Flights have a method LeaveEarly by it.
	LeaveEarly = []Edit{
		{File: "internal/flight/flight.go", Old: "\tdelete(f.among, f.ID)\n", New: "\tf.leaveEarly()\n"},
		{File: "internal/flight/flight.go", Old: "// TakeBack goes back", New: `func (f *Flight[R]) LeaveEarly() {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.leaveEarly()
}

func (f *Flight[R]) leaveEarly() {
	if f.among[f.ID] == f {
		delete(f.among, f.ID)
	}
}

// TakeBack goes back`},
		{File: "mutexrebuild/rebuild.go", Old: "\tf.Decide()\n\toutcome :=", New: "\tf.LeaveEarly()\n\toutcome :="},
	}
)
