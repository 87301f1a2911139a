package localcache_test

import (
	"fmt"
	"log"
	"time"

	"github.com/levee-go/levee/localcache"
)

func Example() {
	names, err := localcache.New[int64, string](localcache.Options{MaxBytes: 16 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	rows := map[int64]string{42: "lamp"} // the database
	name := func(id int64) string {
		if v, kind := names.Get(id); kind == localcache.Value {
			return *v
		}
		mark := names.Mark(fmt.Sprint(id)) // before the read
		v := rows[id]
		names.Fill(mark, id, v, len(v), time.Minute)
		return v
	}
	fmt.Println(name(42))

	rows[42] = "desk lamp"
	names.Delete("42") // after the write; every process that caches the row does this
	fmt.Println(name(42))
	// Output:
	// lamp
	// desk lamp
}
