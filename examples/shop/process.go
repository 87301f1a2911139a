package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache/cachedebug"
	"github.com/levee-go/levee/examples/internal/servers"
)

// partVariable is the environment variable that makes a process of this program one of a shop, and says which.
const partVariable = "LEVEE_SHOP_PART"

// A part is what one process is told.
type part struct {
	Side              int // plainSide or leveeSide
	Redis             redisLogin
	Database          servers.Source
	Size              catalogue
	TTL, RedisTimeout time.Duration
	Prefix            string
	Places            int // connections to the database
	Settings          settings
}

// A redisLogin is how a process reaches Redis.
type redisLogin struct {
	Address, Username, Password string
	DB                          int
}

func (l redisLogin) client() *redis.Client {
	o := servers.RedisOptions(l.Address)
	o.Username, o.Password, o.DB = l.Username, l.Password, l.DB
	return redis.NewClient(o)
}

// settings are what the page changes in a process that runs.
type settings struct {
	Protections Protections
	QueryTime   time.Duration
}

// figures are what a process counts, since its start but for Peak: the most queries under way at a moment since the last look.
type figures struct {
	health
	Queries, Hot, Withdrawn, Absent, Peak int64
}

// childMain plays the part of this process and ends it, if it has one; else it returns. A test binary calls it first in its TestMain.
func childMain() {
	told := os.Getenv(partVariable)
	if told == "" {
		return
	}
	signal.Ignore(os.Interrupt, syscall.SIGHUP) // the terminal sends them to all; the first process ends the others
	redis.SetLogger(servers.Silence{})
	var p part
	err := json.Unmarshal([]byte(told), &p)
	if err == nil {
		err = p.play()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// play serves until the first process goes away. It says where on its standard output.
func (p part) play() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
		time.Sleep(2 * time.Second)
		os.Exit(1) // it did not listen
	}()
	db, err := p.Database.Open()
	if err != nil {
		return err
	}
	defer db.Close()
	handler, end, err := p.open(ctx, db)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, end())
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	fmt.Println(listener.Addr())
	<-ctx.Done()
	return errors.Join(server.Close(), end())
}

// open makes the service and its controls.
func (p part) open(ctx context.Context, db *sql.DB) (_ http.Handler, end func() error, err error) {
	db.SetMaxOpenConns(p.Places)
	db.SetMaxIdleConns(p.Places)
	store := &Store{db: db, size: p.Size}
	store.queryTime.Store(int64(p.Settings.QueryTime))
	rdb := p.Redis.client()
	mux := http.NewServeMux()
	s := &service{}
	states, change := func() health { return health{} }, func(Protections) error { return nil }
	end = rdb.Close
	if p.Side == plainSide {
		s.shop = &plain{rdb, store, p.Prefix, p.TTL}
	} else {
		log := cachedebug.NewLog(nil, 50)
		own := &protected{rdb: rdb, store: store, prefix: p.Prefix, ttl: p.TTL, timeout: p.RedisTimeout, places: p.Places, log: slog.New(log)}
		if err := own.open(ctx, p.Settings.Protections); err != nil {
			return nil, nil, errors.Join(err, rdb.Close())
		}
		s.shop, states, change = own, own.health, own.arrange
		end = func() error { return errors.Join(own.close(), rdb.Close()) }
		// This listens on the loopback address alone: the page of the caches must not be public.
		mux.HandleFunc("/debug/levee", func(w http.ResponseWriter, r *http.Request) { // the switches change the cache
			cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{own.products()}, Log: log}).ServeHTTP(w, r)
		})
	}
	s.routes(mux)
	mux.HandleFunc("GET /figures", func(w http.ResponseWriter, _ *http.Request) {
		f := &store.figures
		_ = json.NewEncoder(w).Encode(figures{
			states(), f.queries.Load(), f.hot.Load(), f.withdrawn.Load(), f.absent.Load(), f.peak.Swap(store.running.Load()),
		})
	})
	control := func(path string, do func(r *http.Request) error) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(ownHeader) == "" { // what another site's page in the user's browser could not send
				http.Error(w, "not from here", http.StatusForbidden)
			} else if err := do(r); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})
	}
	var changing sync.Mutex
	control("/settings", func(r *http.Request) error {
		var told settings
		if err := json.NewDecoder(r.Body).Decode(&told); err != nil {
			return err
		}
		changing.Lock()
		defer changing.Unlock()
		store.queryTime.Store(int64(told.QueryTime))
		if told.Protections == p.Settings.Protections {
			return nil
		}
		p.Settings.Protections = told.Protections
		return change(told.Protections)
	})
	control("/expire/{id}", func(r *http.Request) error {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		return errors.Join(err, s.shop.Expire(r.Context(), id))
	})
	return mux, end, nil
}

// ownHeader marks the requests of this program and of its page.
const ownHeader = "X-Levee-Shop"
