package lock_test

import (
	"testing"

	"github.com/levee-go/levee/internal/mutant"
)

// Each mechanism of a localStore has a test that fails without it.
func TestAProcessNeedsEachMechanism(t *testing.T) {
	t.Parallel()
	const ways, kinds = "^TestAProcessDoesWhatTheModelDoes$", "^TestAProcessDoesWhatTheScriptsDoWithEachKind$"
	type local struct{ file, from, to, test string }
	mutant.Each(t, map[string]local{
		"the end of a lease":          {"record", `return l.owner != "" && l.ends > l.now`, `return l.owner != ""`, ways},
		"the end of a share":          {"record", "delete(l.shares, holder)\n\t\t}\n\t}\n}", "_ = holder\n\t\t}\n\t}\n}", kinds},
		"the claim":                   {"record", "granted && ends > l.now {", "granted && ends < 0 {", ways},
		"the way back into the queue": {"record", "if ticket > 0 && l.ticket(l.mine) == 0 {", "if false {", ways},
		"the hand-off":                {"record", "l.expire()\n\tl.advance()", "l.expire()", ways},
		"the order of the queue":      {"record", "ticket = max(ticket, l.queue[n-1].ticket+1)", "ticket = 1", ways},
		"the respect for the queue":   {"record", `return (first == "" || first == l.mine) && l.fits(l.mode)`, `return first != "?" && l.fits(l.mode)`, kinds},
		"the fences of a grant":       {"record", "l.fence = max(l.fence+fences, l.micros)", "l.fence++", ways},
		"the fence of readers":        {"record", "if l.mode != read {", "if true {", kinds},
		"the number of permits":       {"record", "return len(l.shares) < l.permits", "return true", kinds},
		"the size of a claim":         {"record", "if l.fits(l.mode) {", "if true {", "^TestTheSmallerOfTwoSizesWaitsForItsOwn$"},
		"the writer alone":            {"record", "return m == read || len(l.shares) == 0", "return true", kinds},
		"the owner of a release":      {"record", "return l.ends, l.owner == owner", "return l.ends, true", ways},
		"the last who released":       {"ops", "l.released = g.owner\n", "", ways},
		"the end of work":             {"ops", "case l.mode == once && l.done > l.now:", "case false:", kinds},
		"the waiters of work":         {"ops", "l.tell(e.process(), e.name)", "_ = e", "^TestAHandOffWithinAProcessTakesNoTime$"},
		"their places":                {"ops", "l.queue = nil", "", kinds},
		"the label after a transfer":  {"ops", "l.own(owner, length, l.label)", `l.own(owner, length, "")`, kinds},
		"room for a leaver's permit":  {"ops", "l.permits = max(l.permits, len(l.shares)+1)", "", "^TestAPermitForNobodyIsPassedOn$"},
		"the birth after ForceUnlock": {"ops", "l.born, l.forced = l.fence, true", "l.forced = true", ways},
		"the copy of ForceUnlock":     {"ops", "case l.fence != fence:", "case false:", ways},
		"the holder of one of many":   {"ops", `if l.owner != "" || len(l.queue) > 0 {`, "if false {", "^TestTogetherAndOneByOneExcludeEachOther$"},
		"the fence of many":           {"ops", "fence = max(fence, l.fence+fences)", "", "^TestAProcessForgetsTheNamesThatAreNotInUse$"},
		"the message":                 {"", "if to != nil {", "if false {", "^TestAHandOffWithinAProcessTakesNoTime$"},
		"the memory of fences":        {"", "s.forgotten = max(s.forgotten, r.fence+fences)", "", "^TestAProcessForgetsTheNamesThatAreNotInUse$"},
		"the memory of what is held":  {"", "if r.until > now {", "if false {", "^TestAProcessForgetsTheNamesThatAreNotInUse$"},
		"the end of memory":           {"", "delete(s.records, r.key)", "", "^TestAProcessForgetsTheNamesThatAreNotInUse$"},
		"a space for each Prefix":     {"", "s.spaces[prefix]\n\tif", `s.spaces[""]` + "\n\tprefix = \"\"\n\tif", "^TestABubbleKeepsItsLocksWhileOthersUseTheirs$"},
	}, func(t testing.TB, m local) {
		edit := mutant.Edit{File: "lock/local" + m.file + ".go", Old: m.from, New: m.to}
		if output, failed := mutant.Run(t, mutant.Of{Package: "./lock", Test: m.test, Edits: []mutant.Edit{edit}}); !failed {
			t.Errorf("not seen:\n%s", output)
		}
	})
}
