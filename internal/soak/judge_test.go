package soak

import (
	"fmt"
	"strings"
	"time"
)

// A judge says of each old value that a Ledger has found which changes it lacks. A change is confirmed if its
// write returned nil or if the feed has confirmed it: no value may lack it 60 s later. Any other promises nothing:
// Redis was away, its process was killed, or its transaction failed after it had committed.
type judge struct {
	lacked    func(id, after, upTo int64) ([]change, error) // by a value of the version after, if the row has upTo
	faults    faultLog
	undecided []found
	failures  []string // for each old value that must not be

	looks [2][len(ages)]int             // that have found an old value, see class
	old   [2][len(ages)]map[string]bool // changes that a value has lacked, in whatever process and tier
}

// A found is an old value and the process that has found it.
type found struct {
	oldValue
	by string
}

const (
	confirmed = iota
	unconfirmed
)

var classes = [...]string{"confirmed", "unconfirmed"}

// undecidedFor is how long a judge waits for the end of a write, which has patience and stuck.
const undecidedFor = 30 * time.Second

// judge judges what was found, and what was left undecided before. It returns what is to be logged: unimportant if
// no confirmed change is concerned.
func (j *judge) judge(finds []found, now time.Time) (important, unimportant []string, err error) {
	finds, j.undecided = append(j.undecided, finds...), nil
	for _, f := range finds {
		lacks, err := j.lacks(f)
		if err != nil {
			return nil, nil, err
		}
		if j.open(lacks, now) {
			j.undecided = append(j.undecided, f)
			continue
		}
		text := j.text(f, lacks)
		if f.Read { // which is no look, and is counted as too late
			important = append(important, text)
			continue
		}
		class := j.count(f, lacks)
		if j.forbidden(f, lacks) {
			j.failures = append(j.failures, text)
		}
		if class == confirmed || f.Broken {
			important = append(important, text)
		} else {
			unimportant = append(unimportant, text)
		}
	}
	return important, unimportant, nil
}

// lacks returns the changes that an old value lacks for as long as its Ledger says: the one after its version, as the
// source was seen to differ at Since, and what else was committed by then.
func (j *judge) lacks(f found) ([]change, error) {
	all, err := j.lacked(f.Key, f.Cached, f.Source)
	for i, c := range all {
		if i > 0 && c.at.After(f.Since) {
			return all[:i], err
		}
	}
	return all, err
}

// open reports whether the write of a change still runs, or may.
func (j *judge) open(lacks []change, now time.Time) bool {
	for _, c := range lacks {
		if c.ended.IsZero() && c.fed.IsZero() && j.faults.killedAt(c.by).IsZero() && now.Sub(c.at) < undecidedFor {
			return true
		}
	}
	return false
}

// class is strict with a change that nobody has recorded.
func (c change) class() int {
	if c.confirmed || c.at.IsZero() || !c.fed.IsZero() {
		return confirmed
	}
	return unconfirmed
}

// count returns the class of the look: confirmed if one of the changes is.
func (j *judge) count(f found, lacks []change) int {
	age, class := f.age(), unconfirmed
	for _, c := range lacks {
		of := c.class()
		class = min(class, of)
		if j.old[of][age] == nil {
			j.old[of][age] = map[string]bool{}
		}
		j.old[of][age][fmt.Sprint(f.Key, ":", c.version)] = true
	}
	if len(lacks) == 0 { // the source has gone back
		class = confirmed
	}
	j.looks[class][age]++
	return class
}

func (f found) age() int {
	for i, after := range [...]time.Duration{time.Second, 2 * time.Second, 10 * time.Second} {
		if f.After <= after {
			return i
		}
	}
	return len(ages) - 1
}

// forbidden reports whether a value is old 60 s after a confirmed change. What the feed confirmed late is no fault
// before other processes had to know of it.
func (j *judge) forbidden(f found, lacks []change) bool {
	if f.age() < len(ages)-1 {
		return false
	}
	for _, c := range lacks {
		since := c.ended
		if c.err != "" {
			since = c.fed
		}
		if c.class() == confirmed && f.Found.Sub(since) > bound+time.Second {
			return true
		}
	}
	return len(lacks) == 0
}

const clock = "15:04:05.000"

// text tells all that is known of an old value.
func (j *judge) text(f found, lacks []change) string {
	var b strings.Builder
	verb := "found"
	if f.Read {
		verb = "read"
	}
	fmt.Fprintf(&b, "process %s has %s an old value of key %d in %s: version %d, loaded %v before, and the source has %d; it differed at %s and still did so %v later at %s; faults then: %s",
		f.by, verb, f.Key, f.Tier, f.Cached, f.Age.Round(time.Millisecond), f.Source, f.Since.Format(clock), f.After, f.Found.Format(clock), j.faults.at(f.Found))
	if f.Newest.Version > 0 {
		fmt.Fprintf(&b, "; version %d was confirmed at %s", f.Newest.Version, f.Newest.Since.Format(clock))
	}
	if f.Broken {
		b.WriteString(", WHICH FORBIDS THE VALUE")
	}
	for _, c := range lacks {
		fmt.Fprintf(&b, "\n\tit lacks version %d: %s", c.version, j.story(c))
	}
	return b.String()
}

// story tells what made a change and how that ended.
func (j *judge) story(c change) string {
	if c.at.IsZero() {
		return "nobody has recorded it"
	}
	killed := j.faults.killedAt(c.by)
	text := fmt.Sprintf("%s, %s in process %s, committed at %s", classes[c.class()], c.kind, c.by, c.at.Format(clock))
	switch {
	case !c.ended.IsZero() && c.err == "":
		text += ", returned nil after " + c.ended.Sub(c.at).Round(time.Millisecond).String()
	case !c.ended.IsZero():
		text += fmt.Sprintf(", returned %q after %v", c.err, c.ended.Sub(c.at).Round(time.Millisecond))
	case !killed.IsZero():
		text += ", whose process was killed at " + killed.Format(clock)
	default:
		text += ", whose end is not known"
	}
	if !c.fed.IsZero() {
		text += ", confirmed by the feed after " + c.fed.Sub(c.at).Round(time.Millisecond).String()
	}
	return text + "; faults then: " + j.faults.at(c.at)
}

// summary tells how many changes of each class no look has found missing, in whatever process and tier, and how
// many looks have found an old value. It counts the changes of the last minute too, whose looks are still to come.
func (j *judge) summary(all, confirmedOnes, unconfirmedOnes int64) string {
	text := ""
	for class, n := range []int64{confirmedOnes, all - confirmedOnes} {
		text += fmt.Sprintf("%d %s changes", n, classes[class])
		if class == unconfirmed {
			text += fmt.Sprintf(" (%d of them by a killed process or still open)", all-confirmedOnes-unconfirmedOnes)
		}
		for i, age := range ages {
			old := len(j.old[class][i])
			text += fmt.Sprintf(", %.4f %% right after %s (%d old, in %d looks)", 100-100*float64(old)/float64(max(n, 1)), age, old, j.looks[class][i])
		}
		text += "\n"
	}
	return text + fmt.Sprintf("%d old values whose writes still run", len(j.undecided))
}
