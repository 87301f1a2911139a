package stage

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/examples/internal/servers"
)

const (
	processes = 2
	// partVariable is the environment variable that makes a process of this program play a part, and says which.
	partVariable = "LEVEE_EXAMPLE_PART"
)

// A part is what one process is told to play.
type part struct {
	Recipe   string // its name
	Number   int    // of the process, from 1
	Scale    json.RawMessage
	Redis    string
	Prefix   string
	Database servers.Source
}

// A Process is what a recipe has to work with in one of the two processes.
type Process struct {
	Redis  *redis.Client
	Prefix string // for every key in Redis
	DB     *sql.DB
	Doomed bool // it is the one to die in a deadly recipe
}

// Die ends this process like a crash: nothing is tidied up.
func (p *Process) Die() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {} // the signal is on its way
}

// ChildMain plays the part of this process and ends it, if it has one; else it returns. A test binary that performs a Play calls it first
// in its TestMain.
func ChildMain[S any](play Play[S]) {
	told := os.Getenv(partVariable)
	if told == "" {
		return
	}
	signal.Ignore(os.Interrupt, syscall.SIGHUP) // the terminal sends them to all; the first process ends the others
	redis.SetLogger(servers.Silence{})
	tally, err := play.part([]byte(told))
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(tally)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (play Play[S]) part(told []byte) (tally Tally, err error) {
	var part part
	scale := play.Scale
	if err := errors.Join(json.Unmarshal(told, &part), json.Unmarshal(part.Scale, &scale)); err != nil {
		return tally, err
	}
	i := slices.IndexFunc(play.Recipes, func(r Recipe[S]) bool { return r.Name == part.Recipe })
	if i < 0 {
		return tally, fmt.Errorf("there is no recipe %q", part.Recipe)
	}
	db, err := part.Database.Open()
	if err != nil {
		return tally, err
	}
	defer db.Close()
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	rdb := redis.NewClient(servers.RedisOptions(part.Redis))
	defer rdb.Close()
	if err := errors.Join(db.Ping(), rdb.Ping(context.Background()).Err()); err != nil {
		return tally, err
	}
	ctx, err := begin()
	if err != nil {
		return tally, err
	}
	recipe := play.Recipes[i]
	return recipe.Serve(ctx, &Process{Redis: rdb, Prefix: part.Prefix, DB: db, Doomed: recipe.Deadly && part.Number == 1}, scale)
}

// begin waits for the first process to say go. The context ends when that goes away.
func begin() (context.Context, error) {
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
		time.Sleep(time.Second)
		os.Exit(1) // it did not listen
	}()
	return ctx, nil
}

// perform runs a part in two processes at the same time, and adds up what they say. If it is deadly, the first of them dies, and the second
// comes after that: else, on a busy machine, it could be done before there is a death to suffer from.
func perform(ctx context.Context, part part, deadly bool) (sum Tally, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var children []*child
	defer func() {
		for _, c := range children {
			c.end()
		}
	}()
	for number := 1; number <= processes; number++ {
		part.Number = number
		c, err := start(ctx, part)
		if err != nil {
			return sum, 0, err
		}
		children = append(children, c)
	}
	for _, c := range children {
		if err := c.ready(); err != nil {
			return sum, 0, err
		}
	}
	began := time.Now()
	if deadly {
		if err := children[0].begin(); err != nil {
			return sum, 0, err
		}
		if _, err := children[0].result(); err == nil {
			return sum, 0, errors.New("the process that was to die did not")
		}
		children = children[1:]
	}
	for _, c := range children {
		if err := c.begin(); err != nil {
			return sum, 0, err
		}
	}
	for _, c := range children {
		tally, err := c.result()
		if err != nil {
			return sum, 0, err
		}
		sum.add(tally)
	}
	return sum, time.Since(began), nil
}

// A child is another process of this program.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
	ended  bool
}

func start(ctx context.Context, part part) (*child, error) {
	told, err := json.Marshal(part)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self)}
	c.cmd.Env = append(os.Environ(), partVariable+"="+string(told))
	c.cmd.Stderr = &c.stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	return c, c.cmd.Start()
}

func (c *child) ready() error {
	if line, err := c.out.ReadString('\n'); err != nil || line != "ready\n" {
		return c.failed(err)
	}
	return nil
}

func (c *child) begin() error {
	_, err := io.WriteString(c.in, "go\n")
	return err
}

func (c *child) result() (tally Tally, err error) {
	if err := json.NewDecoder(c.out).Decode(&tally); err != nil {
		return tally, c.failed(err)
	}
	return tally, nil
}

// failed ends the child and tells what it said on the way, if it said something.
func (c *child) failed(err error) error {
	c.end()
	if said := bytes.TrimSpace(c.stderr.Bytes()); len(said) > 0 {
		return fmt.Errorf("a process failed: %s", said)
	}
	return fmt.Errorf("a process failed: %w", err)
}

func (c *child) end() {
	if c.ended {
		return
	}
	c.ended = true
	_ = c.in.Close()
	_ = c.cmd.Wait() // it ends by itself, or with the context
}
