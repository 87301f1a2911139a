//go:build unix

package dbtest

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// An owner is the user whom a server runs as.
type owner = syscall.Credential

// giveAway gives a directory to a user of the system's, if this process is root's: no
// database server runs as root.
func giveAway(dir string) (*owner, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	return &owner{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, uid, gid)
}

// as lets a command run as the server's user.
func (s *Server) as(cmd *exec.Cmd) *exec.Cmd {
	cmd.Dir = s.Dir
	if s.owner != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner}
	}
	return cmd
}
