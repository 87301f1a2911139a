package mutant

// These take the join rule of internal/flight out, for all packages whose tests have to see it.
var (
	// JoinAny gives a flight's result to all who joined it, however late.
	JoinAny = Edit{File: "internal/flight/flight.go", Old: "if number <= f.decidedAt {", New: "if true {"}

	// LeaveEarly has nobody join a flight from just before its value is published on. Flights have a
	// method LeaveEarly by it.
	LeaveEarly = []Edit{
		{File: "internal/flight/flight.go", Old: "\t\tdelete(g.flights[f.kind], f.ID)\n", New: "\t\tf.leaveEarly()\n"},
		{File: "internal/flight/flight.go", Old: "// TakeBack goes back", New: `func (f *Flight) LeaveEarly() {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.leaveEarly()
}

func (f *Flight) leaveEarly() {
	if f.group.flights[f.kind][f.ID] == f {
		delete(f.group.flights[f.kind], f.ID)
	}
}

// TakeBack goes back`},
		{File: "internal/rebuild/turn.go", Old: "\t\tr.flight.Decide()\n\t}\n\tfailpoint.At(\"commit\")", New: "\t\tr.flight.LeaveEarly()\n\t}\n\tfailpoint.At(\"commit\")"},
	}
)
