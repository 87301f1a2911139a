package mysqlfeed

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/google/uuid"

	"github.com/levee-go/levee/cache/feed"
)

// A position says which transactions have been reported, by their global ids (GTIDs). It is valid
// on any server of a replication set. place is the position in the log of this server.
type position struct {
	flavor  string // mysql.MySQLFlavor, mysql.MariaDBFlavor, or "" for the zero position
	gtids   gtids
	place   place
	digests string // digests of the tables whose columns were known there, see layout.go
}

// A place is where an event ends in a server's log: the number of its file, and the byte.
type place uint64

func placeOf(file string, pos uint64) (place, error) {
	number, err := strconv.ParseUint(file[strings.LastIndexByte(file, '.')+1:], 10, 31)
	if err != nil {
		return 0, fmt.Errorf("mysqlfeed: a file of the log is called %q", file)
	}
	return place(number<<32 | min(pos, 1<<32-1)), nil
}

func (p position) public() feed.Position {
	text := p.flavor + " " + p.gtids.String()
	if p.digests != "" {
		text += " " + p.digests
	}
	return feed.Position{Text: text, Order: uint64(p.place)}
}

var digests = regexp.MustCompile(`^[0-9a-f]{16}(,[0-9a-f]{16})*$`)

func parsePosition(from feed.Position) (p position, err error) {
	if from == (feed.Position{}) {
		return position{}, nil
	}
	flavor, text, ok := strings.Cut(from.Text, " ")
	if ok && (flavor == mysql.MariaDBFlavor || flavor == mysql.MySQLFlavor) {
		p = position{flavor: flavor, place: place(from.Order)}
		text, p.digests, _ = strings.Cut(text, " ")
		p.gtids, err = parseGTIDs(flavor, text)
	}
	if err != nil || p.flavor == "" || p.public().Text != from.Text || p.digests != "" && !digests.MatchString(p.digests) {
		return position{}, fmt.Errorf("mysqlfeed: %q is no position of MySQL or MariaDB: %w", from.Text, feed.ErrPositionLost)
	}
	return p, nil
}

// gtids are the transactions that have been reported. In MariaDB that is the last one of each
// domain; replication.BinlogSyncer keeps one for each server of a domain, which a server refuses
// after a failover.
type gtids struct {
	mariadb map[uint32]mysql.MariadbGTID // by domain
	mysql   *mysql.MysqlGTIDSet
}

func parseGTIDs(flavor, text string) (gtids, error) {
	if flavor == mysql.MySQLFlavor {
		set, err := mysql.ParseMysqlGTIDSet(text)
		if err != nil {
			return gtids{}, err
		}
		return gtids{mysql: set.(*mysql.MysqlGTIDSet)}, nil
	}
	g := gtids{mariadb: map[uint32]mysql.MariadbGTID{}}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		id, err := mysql.ParseMariadbGTID(part)
		if err != nil {
			return gtids{}, err
		}
		g.mariadb[id.DomainID] = *id
	}
	return g, nil
}

func (g gtids) String() string {
	if g.mysql != nil {
		return g.mysql.String()
	}
	var parts []string
	for _, domain := range slices.Sorted(maps.Keys(g.mariadb)) {
		id := g.mariadb[domain]
		parts = append(parts, id.String())
	}
	return strings.Join(parts, ",")
}

// add adds the transaction that an event begins, and returns its id.
func (g gtids) add(e replication.Event) (id string) {
	switch e := e.(type) {
	case *replication.MariadbGTIDEvent:
		g.mariadb[e.GTID.DomainID] = e.GTID
		return e.GTID.String()
	case *replication.GTIDEvent:
		sid, err := uuid.FromBytes(e.SID)
		if err != nil || g.mysql == nil {
			return ""
		}
		g.mysql.AddGTID(sid, e.GNO)
		return fmt.Sprintf("%s:%d", sid, e.GNO)
	}
	return ""
}

// set returns the set at which replication.BinlogSyncer begins.
func (g gtids) set() mysql.GTIDSet {
	if g.mysql != nil {
		return g.mysql.Clone()
	}
	set, _ := mysql.ParseMariadbGTIDSet(g.String()) // g came from parsed ids
	return set
}
