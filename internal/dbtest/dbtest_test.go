package dbtest

import (
	"testing"
)

var postgres, mariadb = &Shared{Start: Postgres}, &Shared{Start: MariaDB}

func TestAServerIsBackAfterItWasKilled(t *testing.T) {
	for name, shared := range map[string]*Shared{"PostgreSQL": postgres, "MariaDB": mariadb} {
		t.Run(name, func(t *testing.T) {
			s := shared.Get(t)
			s.Kill()
			if s.kind.answers(s.kind.programs, s).Run() == nil {
				t.Error("it answers after it was killed")
			}
			s.Restart(t)
			if err := s.kind.answers(s.kind.programs, s).Run(); err != nil {
				t.Errorf("%v\n%s", err, s.Log())
			}
		})
	}
}

func TestMain(m *testing.M) { Main(m, postgres, mariadb) }
