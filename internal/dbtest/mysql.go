package dbtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// MySQL starts a MySQL with global transaction ids, whose user "root" may log in over TCP
// without a password. Killed, it loses nothing; a crash of the machine is not survived.
// Debian's releases have MariaDB in its place, whose mysqld is not taken for one.
func MySQL() (*Server, error) {
	found, err := find("MySQL", []string{"mysqld", "mysqladmin"}, "/usr/sbin", "/usr/local/sbin")
	if err != nil {
		return nil, err
	}
	if version, err := exec.Command(found["mysqld"], "--no-defaults", "--version").Output(); err != nil || strings.Contains(string(version), "MariaDB") {
		return nil, fmt.Errorf("MySQL: %s is none: %w", found["mysqld"], ErrAbsent)
	}
	return start(kind{
		name: "mysql", programs: found,
		initial: func(p programs, dir string) *exec.Cmd {
			users := filepath.Join(filepath.Dir(dir), "users.sql") // without names of hosts, root@localhost is for the socket alone
			_ = os.WriteFile(users, []byte("CREATE USER root@'127.0.0.1';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"), 0o644)
			return exec.Command(p["mysqld"], "--no-defaults", "--initialize-insecure", "--datadir="+dir, "--init-file="+users)
		},
		serve: func(p programs, s *Server, args []string) *exec.Cmd {
			return exec.Command(p["mysqld"], append([]string{
				"--no-defaults", "--datadir=" + filepath.Join(s.Dir, "data"), "--socket=" + filepath.Join(s.Dir, "socket"), "--mysqlx=OFF", "--secure-file-priv=",
				"--bind-address=127.0.0.1", "--port=" + strconv.Itoa(s.Port), "--server-id=1", "--skip-name-resolve",
				"--log-bin=binlog", "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
				"--innodb-buffer-pool-size=16M", "--innodb-redo-log-capacity=16M", "--innodb-flush-log-at-trx-commit=2",
				"--performance-schema=OFF",
			}, args...)...)
		},
		answers: func(p programs, s *Server) *exec.Cmd {
			return exec.Command(p["mysqladmin"], "--no-defaults", "--protocol=tcp", "-h127.0.0.1", "-uroot", "-P"+strconv.Itoa(s.Port), "ping")
		},
	})
}
