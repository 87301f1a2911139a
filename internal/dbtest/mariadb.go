package dbtest

import (
	"os/exec"
	"path/filepath"
	"strconv"
)

// MariaDB starts a MariaDB with a binary log in the format ROW, whose user "root" may log in
// over TCP without a password. Killed, it loses nothing; a crash of the machine is not survived.
func MariaDB() (*Server, error) {
	found, err := find("MariaDB", []string{"mariadb-install-db", "mariadbd", "mariadb-admin"}, "/usr/sbin", "/usr/local/sbin")
	if err != nil {
		return nil, err
	}
	return start(kind{
		name: "mariadb", programs: found,
		initial: func(p programs, dir string) *exec.Cmd {
			return exec.Command(p["mariadb-install-db"], "--no-defaults", "--datadir="+dir, "--auth-root-authentication-method=normal", "--skip-test-db")
		},
		serve: func(p programs, s *Server, args []string) *exec.Cmd {
			return exec.Command(p["mariadbd"], append([]string{
				"--no-defaults", "--datadir=" + filepath.Join(s.Dir, "data"), "--socket=" + filepath.Join(s.Dir, "socket"),
				"--bind-address=127.0.0.1", "--port=" + strconv.Itoa(s.Port), "--server-id=1",
				"--log-bin=binlog", "--binlog-format=ROW", "--skip-name-resolve",
				"--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=2",
				"--performance-schema=OFF", "--skip-log-error",
			}, args...)...)
		},
		answers: func(p programs, s *Server) *exec.Cmd {
			return exec.Command(p["mariadb-admin"], "--no-defaults", "--protocol=tcp", "-h127.0.0.1", "-uroot", "-P"+strconv.Itoa(s.Port), "ping")
		},
	})
}
