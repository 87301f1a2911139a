package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

func TestMain(m *testing.M) {
	Main(m, Roles{
		"echo":    echo,
		"pauser":  pauser,
		"failing": func(*Parent, []string) error { return errors.New("it was not to be") },
		"leaking": func(*Parent, []string) error { go func() { select {} }(); return nil },
		"racing":  racing,
		"parent":  parent,
	})
}

// echo says what it is told, until it is told to stop.
func echo(p *Parent, args []string) error {
	p.Say("args %q", args)
	for line := p.Next(); line != "stop"; line = p.Next() {
		p.Say("echo %s", line)
	}
	return nil
}

// pauser lets as many goroutines as its argument says pause at one point.
func pauser(p *Parent, args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	done := make(chan struct{})
	for range n {
		go func() {
			p.Pause("load")
			p.Say("went on")
			done <- struct{}{}
		}()
	}
	for range n {
		<-done
	}
	return nil
}

func racing(*Parent, []string) error {
	n, done := 0, make(chan struct{})
	go func() { n++; close(done) }()
	n++
	<-done
	return nil
}

func startSleeper() (*process, error) { return startProcess(exec.Command("sleep", "600")) }

// parent starts a frozen process and waits to be killed.
func parent(p *Parent, _ []string) error {
	child, err := startSleeper()
	if err != nil {
		return err
	}
	if err := child.stop(); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "child", child.cmd.Process.Pid)
	p.Pause("parent")
	return nil
}
