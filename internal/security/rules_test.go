package security

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/mutexrebuild"
)

// A user of Redis, as a line of SECURITY.md has it.
type user struct {
	name, password string
	commands       []string // granted ones, without the +
	rules          []string
}

// users gives those of SECURITY.md that programs have.
func users(t *testing.T) map[string]user {
	t.Helper()
	all := map[string]user{}
	for _, line := range block(t, "acl") {
		u := user{rules: strings.Fields(line)}
		if len(u.rules) < 4 || u.rules[0] != "user" || u.rules[1] == "default" {
			continue
		}
		u.name, u.rules = u.rules[1], u.rules[2:]
		for _, rule := range u.rules {
			if secret, ok := strings.CutPrefix(rule, ">"); ok {
				u.password = secret
			}
			if command, ok := strings.CutPrefix(rule, "+"); ok {
				u.commands = append(u.commands, command)
			}
		}
		all[u.name] = u
	}
	return all
}

// A guarded server has the users of SECURITY.md, and one to look after it.
type guarded struct {
	*redistest.Server
	admin *redis.Client
}

func startGuarded(t *testing.T, args ...string) guarded {
	t.Helper()
	file := filepath.Join(t.TempDir(), "users.acl")
	rules := strings.Join(append(block(t, "acl"), "user admin on nopass ~* &* +@all"), "\n")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	s := redistest.Start(t, append(args, "--aclfile", file)...)
	return guarded{s, s.Client(t, func(o *redis.Options) { o.Username, o.Password = "admin", "any" })}
}

// Restart waits until the server has read its data. To who has no password it says NOAUTH before that too,
// which is an answer to a Server's Restart.
func (s guarded) Restart(t *testing.T) {
	t.Helper()
	s.Server.Restart()
	redistest.Eventually(t, 15*time.Second, "the server has read its data", func() bool { return s.admin.Ping(t.Context()).Err() == nil })
}

// as gives what opens a client of a process of that user.
func (s guarded) as(t *testing.T, u user) func() redis.UniversalClient {
	return func() redis.UniversalClient {
		return s.Client(t, func(o *redis.Options) { o.Username, o.Password = u.name, u.password })
	}
}

// denied lists what Redis has refused since the last call.
func denied(t *testing.T, admin *redis.Client) (refusals []string) {
	t.Helper()
	entries, err := admin.ACLLog(t.Context(), 100).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		refusals = append(refusals, fmt.Sprintf("%s: %s %q of %s", e.Context, e.Reason, e.Object, e.Username))
	}
	if err := admin.ACLLogReset(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	return refusals
}

// executed lists the commands that the server has executed, by name in lower case.
func executed(t *testing.T, admin *redis.Client) map[string]bool {
	t.Helper()
	info, err := admin.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	done := map[string]bool{}
	for _, m := range regexp.MustCompile(`cmdstat_([a-z|]+):calls=[1-9]`).FindAllStringSubmatch(info, -1) {
		done[m[1]] = true
	}
	return done
}

// A job is what a package does with Redis, by the user that SECURITY.md has for it.
type job struct {
	user, scripts string
	work          func(t *testing.T, open func() redis.UniversalClient) // open opens the client of a process
	check         func(t *testing.T, rdb redis.UniversalClient) error   // Check of the package
	direct        []string                                              // commands beside those of its scripts
}

var jobs = []job{
	{"product-cache", "internal/fleet", useCache, checkCache, []string{"eval", "evalsha", "getrange", "publish", "subscribe", "unsubscribe"}},
	{"product-cache", "internal/fleet", useMutexRebuild, checkMutexRebuild, []string{"eval", "evalsha", "getrange", "publish", "subscribe", "unsubscribe"}},
	{"order-locks", "lock", useLock, checkLock, []string{"eval", "evalsha", "info", "publish", "subscribe", "unsubscribe", "wait"}},
	{"product-filter", "bloom", useBloom, checkBloom, []string{"eval", "evalsha", "publish", "subscribe", "unsubscribe"}},
}

// The rules of SECURITY.md suffice: nothing is refused, neither to a caller nor in a
// script that goes on without it. And they are the least: each command that they
// grant is used.
func TestTheDocumentedRulesAreEnoughAndTheLeast(t *testing.T) {
	redistest.Need(t)
	used := map[string]map[string]bool{}
	for _, j := range jobs {
		t.Run(j.scripts+" as "+j.user, func(t *testing.T) {
			s := startGuarded(t)
			j.work(t, s.as(t, users(t)[j.user]))
			for _, refusal := range denied(t, s.admin) {
				t.Error(refusal)
			}
			if used[j.user] == nil {
				used[j.user] = map[string]bool{}
			}
			for command := range executed(t, s.admin) {
				used[j.user][command] = true
			}
		})
	}
	for name, u := range users(t) {
		for _, command := range u.commands {
			if !used[name][command] {
				t.Errorf("%s may %q, which it does not need", name, command)
			}
		}
	}
}

// The same from the other side: what stands in the scripts, whether or not a test
// comes by there, is granted, and nothing else.
func TestTheDocumentedRulesAreThoseOfTheScripts(t *testing.T) {
	call := regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`)
	for _, j := range jobs {
		want := slices.Clone(j.direct)
		var tried []string // by Check
		for file, text := range scriptsOf(t, j.scripts) {
			var commands []string
			for _, m := range call.FindAllStringSubmatch(text, -1) {
				commands = append(commands, strings.ToLower(m[1]))
			}
			if filepath.Base(file) == "check.lua" {
				tried = commands
			} else {
				want = append(want, commands...)
			}
		}
		for _, command := range tried {
			if !slices.Contains(want, command) {
				t.Errorf("%s: check.lua tries %q, which nothing else needs", j.scripts, command)
			}
		}
		slices.Sort(want)
		want = slices.Compact(want)
		got := slices.Sorted(slices.Values(users(t)[j.user].commands))
		if !slices.Equal(got, want) {
			t.Errorf("%s may\n%q, its scripts need\n%q", j.user, got, want)
		}
	}
}

// A refusal does not stay hidden: with any one command taken away, that is in the
// log. So the empty log of the other test means something.
func TestWithACommandTakenAwayItShows(t *testing.T) {
	s := startGuarded(t)
	u := users(t)["product-cache"]
	for _, command := range []string{"getrange", "evalsha", "set", "publish"} {
		if err := s.admin.ACLSetUser(t.Context(), u.name, "-"+command).Err(); err != nil {
			t.Fatal(err)
		}
		readOnce(t, s.as(t, u)())
		if got := denied(t, s.admin); !slices.ContainsFunc(got, func(refusal string) bool { return strings.Contains(refusal, `"`+command+`"`) }) {
			t.Errorf("without %s: %q", command, got)
		}
		if err := s.admin.ACLSetUser(t.Context(), u.name, "+"+command).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever is taken away of the rules of SECURITY.md, Check says so, and names it. Who may not send or hear
// messages, or not ask for replicas, is not told that Redis cannot be used.
func TestCheckNamesEachRightThatIsTakenAway(t *testing.T) {
	usable := regexp.MustCompile(`^(&.*|\+(publish|subscribe|unsubscribe|wait))$`)
	s := startGuarded(t)
	for _, j := range jobs {
		u := users(t)[j.user]
		for i, rule := range u.rules {
			if !strings.ContainsAny(rule[:1], "~&+") || rule == "+info" { // whose lack costs a warning, and nothing else
				continue
			}
			rules := append([]string{"reset"}, slices.Concat(u.rules[:i], u.rules[i+1:])...)
			if err := s.admin.ACLSetUser(t.Context(), u.name, rules...).Err(); err != nil {
				t.Fatal(err)
			}
			named := regexp.MustCompile(regexp.QuoteMeta(strings.TrimRight(rule[1:], "*")))
			if rule[0] == '+' {
				named = regexp.MustCompile(`\b` + strings.ToUpper(rule[1:]) + `: `)
			}
			err := j.check(t, s.as(t, u)())
			if err == nil || !named.MatchString(err.Error()) {
				t.Errorf("%s without %s: Check says %v", j.scripts, rule, err)
			}
			broken := errors.Is(err, mutexrebuild.ErrUnavailable) || errors.Is(err, lock.ErrUnavailable) || errors.Is(err, bloom.ErrUnavailable)
			if broken == usable.MatchString(rule) {
				t.Errorf("%s without %s: Check says %v: can Redis be used?", j.scripts, rule, err)
			}
		}
		if err := s.admin.ACLSetUser(t.Context(), u.name, append([]string{"reset"}, u.rules...)...).Err(); err != nil {
			t.Fatal(err)
		}
		if err := j.check(t, s.as(t, u)()); err != nil {
			t.Errorf("%s with all rules: Check says %v", j.scripts, err)
		}
	}
	for _, key := range s.admin.Keys(t.Context(), "*levee-check*").Val() {
		if s.admin.PTTL(t.Context(), key).Val() < 0 {
			t.Errorf("the key %q stays", key)
		}
	}
}

// What is not in the patterns stays out of reach.
func TestTheDocumentedRulesReachNothingElse(t *testing.T) {
	s := startGuarded(t)
	ctx := t.Context()
	for name, u := range users(t) {
		rdb := s.as(t, u)()
		for what, err := range map[string]error{
			"another's key":     rdb.Eval(ctx, "return redis.call('PEXPIRE', KEYS[1], 1)", []string{"orders:1"}).Err(),
			"a key not named":   rdb.Eval(ctx, "return redis.call('PEXPIRE', 'orders:1', 1)", nil).Err(),
			"all keys":          rdb.FlushAll(ctx).Err(),
			"another's channel": rdb.Publish(ctx, "orders", "").Err(),
			"the configuration": rdb.ConfigGet(ctx, "*").Err(),
		} {
			if err == nil {
				t.Errorf("%s reaches %s", name, what)
			}
		}
	}
	if len(denied(t, s.admin)) == 0 {
		t.Error("nothing is in the log")
	}
}

// To follow a feed takes the rules of a cache, the commands of locks and a few names.
func TestTheDocumentedRulesAreEnoughToFollowAFeed(t *testing.T) {
	s := startGuarded(t)
	all := users(t)
	rules := slices.Concat(all["product-cache"].rules, strings.Fields(strings.Join(block(t, "acl-feed"), " ")))
	for _, command := range all["order-locks"].commands {
		rules = append(rules, "+"+command)
	}
	if err := s.admin.ACLSetUser(t.Context(), "product-cache", rules...).Err(); err != nil {
		t.Fatal(err)
	}
	useFeed(t, s.as(t, all["product-cache"]))
	for _, refusal := range denied(t, s.admin) {
		t.Error(refusal)
	}
	if n := s.admin.HLen(t.Context(), keys.Feed("shop")).Val(); n == 0 {
		t.Error("no position is kept")
	}
}

// On a cluster the client asks where the slots are, beside what the package does.
func TestTheDocumentedRulesAreEnoughOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t)
	u := users(t)["product-cache"]
	rules := append(slices.Clone(u.rules), strings.Fields(strings.Join(block(t, "acl-cluster"), " "))...)
	for _, node := range nodes.Nodes {
		if err := node.Client(t).ACLSetUser(t.Context(), u.name, rules...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	open := func() redis.UniversalClient {
		return nodes.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = u.name, u.password })
	}
	useCache(t, open)
	gone := keys.OfCache("product").Value(0, "gone")
	nodes.HalfMove(gone)
	if err := open().GetRange(t.Context(), gone, 0, 0).Err(); err != nil {
		t.Error(err)
	}
	for _, node := range nodes.Nodes {
		for _, refusal := range denied(t, node.Client(t)) {
			t.Error(refusal)
		}
	}
}
