package main

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// known are the tests that may fail for a reason that is not ours to mend. A failure of
// any other test fails the run, also if the test passes when it runs again.
var known = []exception{
	{module + "internal/clients", "TestAClusterWithAnyClient", routeByLatency, whyRouteByLatency},
	{module + "internal/clients", "TestEveryPackageRefusesWhatItCannotUse", routeByLatency, whyRouteByLatency},
}

const (
	routeByLatency    = "github.com/redis/go-redis/v9.NewClusterClient.func1()"
	whyRouteByLatency = "a data race of go-redis v9.23.0 with RouteByLatency: newClusterNodeWithNodeAddress (osscluster.go:550) starts " +
		"updateLatency, which sends a PING, before NewClusterClient's OnNewNode (osscluster.go:1416) writes the himport of the same client; " +
		"initConn (redis.go:959) reads it. On a busy machine the PING comes first."
)

// An exception forgives a failure of one test, if the failure prints what is expected.
type exception struct {
	pkg    string // its import path
	test   string
	prints string // a part of the output of the failure that is forgiven
	reason string // why it cannot be mended here, with the place upstream
}

// module is what our import paths have before the directory.
const module = "github.com/levee-go/levee/"

// check returns an error for the first exception that has no reason, or that names no
// test of the packages below root.
func check(root string, exceptions []exception) error {
	for _, e := range exceptions {
		switch {
		case strings.TrimSpace(e.reason) == "":
			return fmt.Errorf("the exception for %s %s has no reason", e.pkg, e.test)
		case strings.TrimSpace(e.prints) == "":
			return fmt.Errorf("the exception for %s %s does not say which output it forgives", e.pkg, e.test)
		case !isTest(filepath.Join(root, strings.TrimPrefix(e.pkg, module)), e.test):
			return fmt.Errorf("the exception for %s %s names no test", e.pkg, e.test)
		}
	}
	return nil
}

// isTest says whether the package in dir has a test of that name.
func isTest(dir, name string) bool {
	files, _ := os.ReadDir(dir)
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, file.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			continue // go test says so
		}
		for _, test := range testsOf(parsed) {
			if test.Name.Name == name {
				return true
			}
		}
	}
	return false
}

// forgiven returns the exception for a failure, or nil.
func forgiven(exceptions []exception, pkg, test, output string) *exception {
	for i, e := range exceptions {
		if pkg == e.pkg && test == e.test && strings.Contains(output, e.prints) {
			return &exceptions[i]
		}
	}
	return nil
}
