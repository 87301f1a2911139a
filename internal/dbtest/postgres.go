package dbtest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

// Postgres starts a PostgreSQL with wal_level=logical, whose superuser is "postgres", without
// a password. Killed, it loses nothing; a crash of the machine is not survived.
func Postgres() (*Server, error) {
	return startPostgres("initdb", func(p programs, dir string) *exec.Cmd {
		return exec.Command(p["initdb"], "-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	})
}

// PostgresStandby starts a standby of a server that Postgres has started, to read from.
func PostgresStandby(primary *Server) (*Server, error) {
	return startPostgres("pg_basebackup", func(p programs, dir string) *exec.Cmd {
		return exec.Command(p["pg_basebackup"], "-D", dir, "-h", "127.0.0.1", "-p", strconv.Itoa(primary.Port), "-U", "postgres",
			"-d", "dbname=postgres", "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
	})
}

// startPostgres starts a server whose data directory a program makes.
func startPostgres(maker string, initial func(p programs, dir string) *exec.Cmd) (*Server, error) {
	homes, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.Reverse(homes)
	found, err := find("PostgreSQL", []string{maker, "postgres", "pg_isready"}, homes...)
	if err != nil {
		return nil, err
	}
	// Debian's pg_isready of the PATH is a script in Perl, which takes ten times as long as the program.
	if server, err := filepath.EvalSymlinks(found["postgres"]); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(server), "pg_isready")); err == nil {
			found["pg_isready"] = path
		}
	}
	return start(kind{
		name: "postgres", programs: found, initial: initial,
		serve: func(p programs, s *Server, args []string) *exec.Cmd {
			settings := []string{"-D", filepath.Join(s.Dir, "data"), "-p", strconv.Itoa(s.Port), "-h", "127.0.0.1", "-k", s.Dir}
			for _, set := range []string{
				"wal_level=logical", "max_wal_senders=20", "max_replication_slots=20",
				"fsync=off", "shared_buffers=16MB", "max_connections=100", "autovacuum=off", "max_wal_size=256MB",
			} {
				settings = append(settings, "-c", set)
			}
			return exec.Command(p["postgres"], append(settings, args...)...)
		},
		answers: func(p programs, s *Server) *exec.Cmd {
			return exec.Command(p["pg_isready"], "-q", "-h", "127.0.0.1", "-p", strconv.Itoa(s.Port))
		},
	})
}

// PostgresURL is how to reach a database of a server that Postgres has started.
func (s *Server) PostgresURL(user, database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", user, s.Port, database)
}
