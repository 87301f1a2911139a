package main

import (
	"regexp"
	"slices"
	"strings"
)

// alone returns a command line for a shell in the root. It runs tests of a package that ran with
// flags, or all of them if there are none, with those variables of environ that are the tests' own.
func alone(environ, flags []string, pkg string, tests []string) string {
	var words []string
	for _, variable := range environ {
		if strings.HasPrefix(variable, "LEVEE_") && variable != "LEVEE_REDIS_SERVER=redis-server" { // which is the default
			name, value, _ := strings.Cut(variable, "=")
			words = append(words, name+"="+quoted(value))
		}
	}
	words = append(words, "go", "test")
	for _, word := range slices.Concat(only(flags, tests), []string{pkg}) {
		words = append(words, quoted(word))
	}
	return strings.Join(words, " ")
}

// only changes flags so that go test runs these tests anew: several tests, one test or subtest,
// or what flags say if there are none.
func only(flags, tests []string) []string {
	kept := slices.DeleteFunc(slices.Clone(flags), func(flag string) bool {
		return strings.HasPrefix(flag, "-count=") || strings.HasPrefix(flag, "-run=") && tests != nil
	})
	kept = append(kept, "-count=1")
	switch len(tests) {
	case 0:
		return kept
	case 1:
		levels := strings.Split(regexp.QuoteMeta(tests[0]), "/")
		return append(kept, "-run=^"+strings.Join(levels, "$/^")+"$")
	}
	return append(kept, "-run=^("+strings.Join(tests, "|")+")$")
}

var plainWord = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// quoted is a word as a shell reads it.
func quoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// suspects returns the tests to run alone after a package failed as a whole: those that a panic
// or a timeout ended. Without any, what failed is the package.
func (p *pkg) suspects() []string {
	if p.exited {
		return nil
	}
	return append(p.having("fail"), p.having("")...)
}

// narrowest returns the failed test, or that of its subtests, in which all that failed is.
func (p *pkg) narrowest(test string) string {
	for {
		var below []string
		for _, name := range p.tests { // a test begins before its subtests
			if strings.HasPrefix(name, test+"/") && p.results[name] == "fail" {
				below = append(below, name)
			}
		}
		if len(below) == 0 || slices.ContainsFunc(below[1:], func(name string) bool { return !strings.HasPrefix(name, below[0]+"/") }) {
			return test
		}
		test = below[0]
	}
}
