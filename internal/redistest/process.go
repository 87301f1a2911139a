package redistest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// A process is another operating-system process that does not outlive this one.
//
// A guard sees to that: a shell that reads from a pipe whose other end only we
// hold. If we die without a word, however that happens, the read fails and the
// guard kills the process, be it frozen or not. Linux could do this by itself
// (PDEATHSIG), but ties it to the thread that started the process, and other
// systems have nothing like it.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process is gone
	err   error         // how it ended, as exec.Cmd.Wait tells; read it after ended is closed
}

// The guard ignores the signals of a terminal, which reach it together with us.
const guard = `trap "" HUP INT QUIT TERM; read -r _ || kill -KILL "$1"`

// StartProcess starts a server that is no Redis. It does not outlive this process. kill
// ends it as a crash would, and returns when it is gone.
func StartProcess(cmd *exec.Cmd) (kill func(), err error) {
	p, err := startProcess(cmd)
	if err != nil {
		return nil, err
	}
	return p.kill, nil
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	watch := exec.Command("sh", "-c", guard, "guard", strconv.Itoa(cmd.Process.Pid))
	leash, err := watch.StdinPipe()
	if err == nil {
		err = watch.Start()
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("the guard of a process: %w", err)
	}
	go func() {
		defer close(p.ended)
		p.err = cmd.Wait()
		_, _ = leash.Write([]byte("\n")) // the guard goes home; its own end tells us nothing
		_ = leash.Close()
		_ = watch.Wait()
	}()
	return p, nil
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// stop freezes the process and returns when it stands still.
func (p *process) stop() error {
	if err := p.signal(sigStop); err != nil {
		return err
	}
	if !poll(5*time.Second, func() bool { return !p.running() || frozen(p.cmd.Process.Pid) }) {
		return fmt.Errorf("process %d does not stop", p.cmd.Process.Pid)
	}
	return nil
}

func (p *process) cont() error { return p.signal(sigCont) }

// kill ends the process without a chance to tidy up, and waits for its end.
// A process that is gone already stays so.
func (p *process) kill() {
	_ = p.signal(syscall.SIGKILL)
	<-p.ended
}

func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("%v to process %d: %w", sig, p.cmd.Process.Pid, err)
	}
	return nil
}

// frozen tells whether a process has been stopped by a signal.
func frozen(pid int) bool {
	if runtime.GOOS != "linux" {
		state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
		return err == nil && bytes.HasPrefix(bytes.TrimSpace(state), []byte("T"))
	}
	// Not ps: a small container does not have it. The line reads "pid (name) state …".
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	return bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T"))
}
