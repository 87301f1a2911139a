// Lockservice gives package lock to those who speak only HTTP: a deployment script, a job in another language.
//
//	go run ./lockservice -redis 127.0.0.1:6379
//
//	curl -X POST   -H 'Idempotency-Key: job-7' 'localhost:8080/locks/report?for=30s'   201 {"token": "…", "fence": 1789…}, or 409 with Retry-After
//	curl -X PUT    -H 'Lock-Token: …'          'localhost:8080/locks/report?for=30s'   200, with a new token: the time begins anew
//	curl -X DELETE -H 'Lock-Token: …'          'localhost:8080/locks/report'           204
//	curl                                       'localhost:8080/locks/report'           who holds it
//
// A POST whose answer was lost may be sent again with the same key: it gets the same token, until that is released or exchanged. A token
// may be handed to somebody else, who goes on with it. The fence is for what the lock protects: a database that remembers the highest
// refuses a holder whose time is over.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/lock"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "`address` to listen at")
	server := flag.String("redis", "127.0.0.1:6379", "`address` of Redis")
	flag.Parse()
	rdb := redis.NewClient(&redis.Options{Addr: *server, ContextTimeoutEnabled: true})
	defer rdb.Close()
	locker, err := lock.New(rdb, lock.Options{Prefix: "lockservice"})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	web := &http.Server{Addr: *addr, Handler: (&service{locker, rdb}).routes(), ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- web.ListenAndServe() }()
	log.Printf("listening at http://%s", *addr)
	select {
	case err := <-failed: // the address is taken, for example
		log.Fatal(err)
	case <-ctx.Done():
	}
	// Requests under way end first: a lock whose token is not delivered stays taken for its time.
	last, end := context.WithTimeout(context.Background(), 5*time.Second)
	defer end()
	if err := web.Shutdown(last); err != nil {
		log.Print(err)
	}
}

// A service answers for locks. It may run any number of times on one Redis.
type service struct {
	locker *lock.Locker
	rdb    redis.UniversalClient
}

func (s *service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /locks/{name}", s.acquire)
	mux.HandleFunc("PUT /locks/{name}", s.prolong)
	mux.HandleFunc("DELETE /locks/{name}", s.release)
	mux.HandleFunc("GET /locks/{name}", s.show)
	return mux
}

// A grant is what a holder gets.
type grant struct {
	Token lock.Token `json:"token"`
	Fence int64      `json:"fence"`
}

func (s *service) acquire(w http.ResponseWriter, r *http.Request) {
	name, key := r.PathValue("name"), r.Header.Get("Idempotency-Key")
	d, err := howLong(r)
	if err != nil || key == "" || len(key) > 200 {
		http.Error(w, "an Idempotency-Key, and for=30s", http.StatusBadRequest)
		return
	}
	lease, err := s.locker.With(lock.Options{Prefix: "lockservice", Label: key}).TryLock(r.Context(), name)
	if errors.Is(err, lock.ErrNotAcquired) {
		// The same request may have been here before. It gets the same grant again while it is the one that holds the lock.
		if info, unseen := s.locker.Inspect(r.Context(), name); unseen == nil && info.Label == key {
			if text, unknown := s.rdb.Get(r.Context(), remembered(name, info.Fence)).Bytes(); unknown == nil {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusCreated)
				_, _ = w.Write(text)
				return
			}
		}
	}
	if err != nil {
		refuse(w, err)
		return
	}
	token, err := lease.Detach(r.Context(), d)
	if err != nil {
		refuse(w, err)
		return
	}
	text, err := json.Marshal(grant{token, lease.Fence()})
	if err == nil {
		err = s.rdb.Set(r.Context(), remembered(name, lease.Fence()), text, d).Err()
	}
	if err != nil { // it could not be repeated, so it is not given at all
		_ = s.locker.Release(context.WithoutCancel(r.Context()), token)
		refuse(w, errors.Join(lock.ErrUnavailable, err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(text)
}

// remembered is the key in Redis of the grant of a lock with this fence.
func remembered(name string, fence int64) string {
	return "lockservice:grant:" + strconv.Quote(name) + ":" + strconv.FormatInt(fence, 10)
}

// prolong is also how a lock is handed over: whoever has the token goes on, and the token of before is worth nothing any more.
func (s *service) prolong(w http.ResponseWriter, r *http.Request) {
	d, err := howLong(r)
	if err != nil {
		http.Error(w, "for=30s", http.StatusBadRequest)
		return
	}
	lease, err := s.locker.Attach(r.Context(), lock.Token(r.Header.Get("Lock-Token")))
	if err != nil {
		refuse(w, err)
		return
	}
	// The fence stays, so a POST that is repeated would get the token of before.
	if err := s.rdb.Del(r.Context(), remembered(r.PathValue("name"), lease.Fence())).Err(); err != nil {
		_ = lease.Unlock(context.WithoutCancel(r.Context()))
		refuse(w, errors.Join(lock.ErrUnavailable, err))
		return
	}
	token, err := lease.Detach(r.Context(), d)
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(grant{token, lease.Fence()})
}

func (s *service) release(w http.ResponseWriter, r *http.Request) {
	if err := s.locker.Release(r.Context(), lock.Token(r.Header.Get("Lock-Token"))); err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *service) show(w http.ResponseWriter, r *http.Request) {
	info, err := s.locker.Inspect(r.Context(), r.PathValue("name"))
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"held": info.Held, "by": info.Label, "seconds": info.Remaining.Seconds(),
		"waiting": info.Waiting, "longest": info.Longest.Seconds(), // for so long, the first in the queue has waited
	})
}

// howLong is for how long the lock is wanted: from 100 ms to a day, see Lease.Detach.
func howLong(r *http.Request) (time.Duration, error) {
	d, err := time.ParseDuration(cmp.Or(r.FormValue("for"), "30s"))
	if err == nil && (d < 100*time.Millisecond || d > 24*time.Hour) {
		err = fmt.Errorf("%v is too short or too long", d)
	}
	return d, err
}

// refuse says why not.
func refuse(w http.ResponseWriter, err error) {
	var held *lock.HeldError
	switch {
	case errors.As(err, &held):
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(max(held.Remaining, time.Second).Seconds()))))
		http.Error(w, "somebody else has it", http.StatusConflict)
	case errors.Is(err, lock.ErrNotHeld), errors.Is(err, lock.ErrLost):
		http.Error(w, "the token stands for nothing any more", http.StatusPreconditionFailed)
	case errors.Is(err, lock.ErrBadToken), errors.Is(err, lock.ErrConfig):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		log.Print(err)
		http.Error(w, "it is not known whether you have it", http.StatusServiceUnavailable)
	}
}
