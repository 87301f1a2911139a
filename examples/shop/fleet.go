package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The two shops.
const (
	plainSide = iota
	leveeSide
	sides
)

var sideNames = [sides]string{"plain", "levee"}

// A fleet is the processes of one shop.
type fleet struct {
	processes []*process
	client    *http.Client
	turn      atomic.Uint64
}

// A process is another process of this program, which serves a shop.
type process struct {
	Number int
	part   part

	mu    sync.Mutex // guards what follows
	child *child     // nil while it is dead
	past  figures    // of those that were killed
	last  figures
}

// openFleet starts n processes.
func openFleet(ctx context.Context, p part, n int) (*fleet, error) {
	f := &fleet{client: &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	failed := make(chan error, n)
	for i := range n {
		one := &process{Number: i + 1, part: p}
		f.processes = append(f.processes, one)
		go func() { failed <- one.start(ctx) }()
	}
	var err error
	for range n {
		err = errors.Join(err, <-failed)
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *fleet) close() {
	for _, p := range f.processes {
		p.end((*child).end)
	}
	f.client.CloseIdleConnections()
}

// next returns the address of a process that is alive, "" if none is: a load balancer that knows who is.
func (f *fleet) next() string {
	for range f.processes {
		if address := f.processes[f.turn.Add(1)%uint64(len(f.processes))].address(); address != "" {
			return address
		}
	}
	return ""
}

// tell sends a control to a process that is alive, or to all that are.
func (f *fleet) tell(ctx context.Context, path string, body any, all bool) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	reached := 0
	for _, p := range f.processes {
		address := p.address()
		if address == "" || reached > 0 && !all {
			continue
		}
		reached++
		err = errors.Join(err, f.post(ctx, address+path, "application/json", bytes.NewReader(data)))
	}
	if reached == 0 {
		err = errors.New("no process is alive")
	}
	return err
}

func (f *fleet) post(ctx context.Context, where, kind string, body io.Reader) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+where, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	request.Header.Set(ownHeader, "1")
	response, err := f.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(said)))
	}
	return nil
}

// setPrice changes the price of a product in a process that is alive.
func (f *fleet) setPrice(ctx context.Context, id, cents int64) error {
	form := url.Values{"cents": {strconv.FormatInt(cents, 10)}}.Encode()
	return f.post(ctx, f.next()+"/product/"+strconv.FormatInt(id, 10)+"/price", "application/x-www-form-urlencoded", strings.NewReader(form))
}

// price asks one process for the price of a product.
func (f *fleet) price(ctx context.Context, address string, id int64) (cents int64, err error) {
	a := f.visit(ctx, address, id)
	if a.err != nil {
		return 0, a.err
	}
	return strconv.ParseInt(a.price, 10, 64)
}

// A reply is what a visitor gets.
type reply struct {
	status      int
	tier, price string
	stale       bool
	err         error
}

// visit asks one process for one product.
func (f *fleet) visit(ctx context.Context, address string, id int64) (r reply) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/product/"+strconv.FormatInt(id, 10), nil)
	if err != nil {
		return reply{err: err}
	}
	response, err := f.client.Do(request)
	if err != nil {
		return reply{err: err}
	}
	defer response.Body.Close()
	_, r.err = io.Copy(io.Discard, response.Body)
	r.status, r.tier, r.price = response.StatusCode, response.Header.Get("X-Tier"), response.Header.Get("X-Price")
	r.stale = response.Header.Get("X-Stale") != ""
	return r
}

// look asks all processes for their figures. One that does not answer gives those from before.
func (f *fleet) look(ctx context.Context) {
	var all sync.WaitGroup
	for _, p := range f.processes {
		all.Go(func() { p.look(ctx, f.client) })
	}
	all.Wait()
}

func (p *process) look(ctx context.Context, client *http.Client) {
	address := p.address()
	if address == "" {
		return
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/figures", nil)
	if err != nil {
		return
	}
	response, err := client.Do(request)
	if err != nil {
		return
	}
	defer response.Body.Close()
	var now figures
	if json.NewDecoder(response.Body).Decode(&now) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != nil && p.child.address == address {
		p.last = now
	}
}

// figures are those of the process and of those before it.
func (p *process) figures() (f figures, alive bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f = p.last
	f.Queries += p.past.Queries
	f.Hot += p.past.Hot
	f.Withdrawn += p.past.Withdrawn
	f.Absent += p.past.Absent
	return f, p.child != nil
}

// address is where the process listens, "" while it is dead.
func (p *process) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return ""
	}
	return p.child.address
}

func (p *process) start(ctx context.Context) error {
	c, err := startChild(ctx, p.part)
	if err != nil {
		return fmt.Errorf("process %d of %s: %w", p.Number, sideNames[p.part.Side], err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.child = c
	return nil
}

// end ends the process by kill or in an orderly way, if it lives.
func (p *process) end(how func(*child)) {
	p.mu.Lock()
	c := p.child
	p.child = nil
	if c != nil {
		p.past.Queries += p.last.Queries
		p.past.Hot += p.last.Hot
		p.past.Withdrawn += p.last.Withdrawn
		p.past.Absent += p.last.Absent
		p.last = figures{}
	}
	p.mu.Unlock()
	if c != nil {
		how(c)
	}
}

// A child is the process itself.
type child struct {
	address string
	cmd     *exec.Cmd
	in      io.WriteCloser
	stderr  bytes.Buffer
}

func startChild(ctx context.Context, p part) (*child, error) {
	told, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self)}
	c.cmd.Env = append(os.Environ(), partVariable+"="+string(told))
	c.cmd.Stderr = &c.stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() })
	defer stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		c.kill()
		return nil, fmt.Errorf("it did not start: %w: %s", err, strings.TrimSpace(c.stderr.String()))
	}
	c.address = strings.TrimSpace(line)
	return c, nil
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// end closes the pipe that the process reads from, which ends it.
func (c *child) end() {
	_ = c.in.Close()
	slow := time.AfterFunc(5*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer slow.Stop()
	_ = c.cmd.Wait()
}
