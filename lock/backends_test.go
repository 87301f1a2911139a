package lock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// overRedisAlone says why tests do not run within the process: of whole files, and of single tests
// in files whose other tests run over both. Those in local*_test.go have no Redis, or both.
var overRedisAlone = map[string]string{
	"chaos_test.go":         "faults of servers and networks",
	"check_test.go":         "what is wrong with a Redis",
	"clock_test.go":         "the clock of a server, and of a client that has another",
	"cluster_chaos_test.go": "a cluster",
	"failover_test.go":      "a failover",
	"fault_test.go":         "lost replies, and a Redis that does not answer",
	"forget_test.go":        "what a failover forgets; TestAPermitForNobodyIsPassedOn is over both stores",
	"fsync_test.go":         "the disk of a server",
	"layout_test.go":        "the layout of keys",
	"log_test.go":           "log lines about Redis",
	"memory_test.go":        "the memory of Redis, its keys and their eviction",
	"named_errors_test.go":  "errors of a Redis that hangs",
	"process_test.go":       "several operating system processes",
	"refused_test.go":       "a right that a server refuses",
	"scripts_test.go":       "the scripts",
	"search_test.go":        "the model alone",
	"short_test.go":         "the short ways of the scripts",
	"slot_scripts_test.go":  "slots of a cluster",
	"slot_test.go":          "slots of a cluster",
	"soak_test.go":          "messages that are dropped",
	"store_test.go":         "late copies of commands, and keys that are evicted",
	"topology_test.go":      "a cluster, and replicas",
	"ttl_test.go":           "the times to live of keys",
	"watchdog_test.go":      "renewals that take time",

	"TestLockAllOfFreeLocksIsOneScript":                       "it counts scripts",
	"TestALostReplyOfLockAllLosesNothing":                     "lost replies",
	"TestLocksGrantedToNobodyAreGivenBack":                    "lost replies",
	"TestWhatALateBidForSeveralGetsIsGivenBack":               "late commands",
	"TestLockAllOfWhatCannotBeTakenTakesNothing":              "keys that are not locks",
	"TestLockAllTouchesNoKeyThatItDoesNotName":                "the keys of scripts",
	"TestLockAllIsConfirmedByReplicasInOneRoundTrip":          "replicas",
	"TestLockAllOnAClusterAsksOnceForWhatSharesASlot":         "a cluster",
	"TestLockAllThroughAProxyOfAClusterGoesOneByOne":          "a cluster",
	"TestWhatLockAnyIsGrantedBesidesIsGivenBack":              "a reply that is held up",
	"TestLockAnyGoesOnWithoutANodeThatFails":                  "a cluster",
	"TestOptionsThatKeepALockFromBeingPassedOn":               "one of the options is Replicas",
	"TestAHolderOfACohortThatWasTakenOverHarmsNobody":         "a lease that ends in Redis before its holder knows",
	"TestALostLeaseIsNotPassedOn":                             "it counts scripts",
	"TestALossReachesTheCallerThatTheLockWasPassedTo":         "a Redis that forgets",
	"TestALeaseThatWasPassedOnDuringARenewalIsRenewed":        "a reply that is held up",
	"TestFencesOfACohortGrowWhenTheServersClockStepsBack":     "the clock of a server",
	"TestALockIsNotPassedOnWhileABidIsOnItsWay":               "a reply that is held up",
	"TestForceUnlockOfAFreeLockChangesNothing":                "records that are written by hand",
	"TestAForcedHolderThatHearsNoMessageLearnsOfItWhenItAsks": "messages that are dropped",
	"TestTheUnlockOfAForcedHolderSaysThatTheLockWasLost":      "messages that are dropped",
	"TestACopyOfForceUnlockSparesTheNextHolder":               "copies of commands",
	"TestALateCopyOfAForcedHoldersBidIsInVain":                "copies of commands",
	"TestForceUnlockOfALockWhoseRecordWasEvicted":             "keys that are evicted",
	"TestAHandOffIsTwoScriptsHoweverManyWait":                 "it counts scripts",
	"TestHistoriesAreThoseOfAMutexWithFences":                 "faults of networks; TestHistoriesWithinAProcess… is without",
	"TestAHistoryOfTheNaiveRecipeIsNotThatOfAMutex":           "the recipe is of Redis",
	"TestAHookThatRewritesKeysDoesNotDoubleALock":             "hooks of a client",
	"TestACheckBesideAnUnlockIsNoLoss":                        "a command that is held up",
	"TestInspectTellsWhatIsGrantedFromWhatIsHeld":             "records that are written by hand",
	"TestInspectTellsForHowLongTheFirstHasWaited":             "records that are written by hand",
	"TestTheLossOfOneEndsAll":                                 "a Redis that forgets",
	"TestAnUncontendedPairIsTwoScripts":                       "it counts scripts",
	"TestOneConnectionIsEnough":                               "connections",
	"TestBadInputIsRefusedBeforeAnythingIsWritten":            "what is written; names and options are checked before there is a store",
	"TestThreeFailedRenewalsAreSurvived":                      "lost replies",
	"TestNothingIsRenewedAfterUnlock":                         "it counts scripts",
	"TestManyLeasesAreRenewedTogether":                        "it counts round trips",
	"TestALeaseEndsHereBeforeItEndsInRedis":                   "replies that take time",
	"TestALateCopyOfACommandTakesNothing":                     "copies of commands",
	"TestWhatALateBidGetsIsGivenBack":                         "late commands",
	"TestTheLateCopyOfABidThatWasAskedAgainIsGivenBack":       "copies of commands",
	"TestACallerThatLeavesAsItIsGrantedKeepsNothing":          "a hook of a client is its moment",
	"TestAReaderThatLeavesAsItIsServedKeepsNothing":           "a hook of a client is its moment",
	"TestAForeignValueIsLeftAsItIs":                           "keys that are not locks",
	"TestTheUsersOwnKeyOfTheSameNameIsNotTouched":             "keys that are not locks",
	"TestWhatHappensToTheRecordIsReported":                    "records that are written by hand",
	"TestAPersistedRecordStillEnds":                           "times to live of keys",
	"TestAFullRedisCanStillBeUnlocked":                        "a Redis without memory",
	"TestStatsCountRenewalsAndLosses":                         "a Redis that dies",
	"TestCloseWaitsForCallsThatAreGrantedALock":               "a reply that is held up",
	"TestAnAttachBesideCloseGivesTheLockBack":                 "a reply that is held up",
}

// A Locker without Redis keeps what a Locker promises, so a test of it runs over both, or says why
// it cannot.
func TestEachTestRunsOverBothOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for what := range overRedisAlone {
		left[what] = true
	}
	both := 0
	for _, file := range files {
		delete(left, file)
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
				continue
			}
			name := f.Name.Name
			delete(left, name)
			why := overRedisAlone[file] + overRedisAlone[name]
			switch runs := runsOverBoth(f); {
			case runs && overRedisAlone[name] != "":
				t.Errorf("%s runs over both, and is in the table", name)
			case runs:
				both++
			case why == "" && !strings.HasPrefix(file, "local") && file != "backends_test.go":
				t.Errorf("%s runs over Redis alone, and does not say why", name)
			}
		}
	}
	for what := range left {
		t.Errorf("%s is in the table, and there is none", what)
	}
	t.Logf("%d tests run over both", both)
}

// runsOverBoth reports whether a test calls overBoth or inBubbles.
func runsOverBoth(f *ast.FuncDecl) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok && (name.Name == "overBoth" || name.Name == "inBubbles") {
			found = true
		}
		return true
	})
	return found
}
