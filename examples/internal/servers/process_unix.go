//go:build unix

package servers

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func thaw(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }

// ownGroup keeps the signals of a terminal from a process.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// guard sees to it that a process does not outlive this program, however that ends: a shell reads from a pipe whose other end only we hold,
// and when that closes without a word, it kills the process. The function it returns sends the guard home.
func guard(pid int) (free func()) {
	watch := exec.Command("sh", "-c", `read -r _ || kill -KILL "$1"`, "guard", strconv.Itoa(pid))
	ownGroup(watch)
	leash, err := watch.StdinPipe()
	if err != nil || watch.Start() != nil {
		return func() {} // then the end of this program by force leaves the process behind
	}
	return func() {
		_, _ = leash.Write([]byte("\n"))
		_ = leash.Close()
		_ = watch.Wait()
	}
}
