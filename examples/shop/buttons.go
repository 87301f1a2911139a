package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// buttons are what the page can do. Those of trouble that lasts are pressed again to end it.
var buttons = map[string]func(ctx context.Context, l *live) error{
	"flood": func(_ context.Context, l *live) error {
		l.trouble.Flood = !l.trouble.Flood
		l.crowd.scraper.Store(l.trouble.Flood)
		l.markOn("scraper", l.trouble.Flood)
		return nil
	},
	"expire-hot": func(ctx context.Context, l *live) error {
		l.mark("hot expires")
		return l.expire(ctx, hot)
	},
	"expire-all": func(ctx context.Context, l *live) error {
		l.mark("all expires")
		return l.expire(ctx, 0)
	},
	"stop-redis": func(_ context.Context, l *live) error {
		l.trouble.RedisGone = !l.trouble.RedisGone
		l.proxy.stop(l.trouble.RedisGone)
		l.mark(map[bool]string{true: "Redis down", false: "Redis back"}[l.trouble.RedisGone])
		return nil
	},
	"slow-redis": func(_ context.Context, l *live) error {
		l.slowRedis(!l.trouble.SlowRedis)
		l.markOn("slow Redis", l.trouble.SlowRedis)
		return nil
	},
	"slow-database": func(ctx context.Context, l *live) error {
		l.slowDatabase(!l.trouble.SlowDatabase)
		l.markOn("slow database", l.trouble.SlowDatabase)
		return l.push(ctx)
	},
	"kill":  func(_ context.Context, l *live) error { return l.kill() },
	"price": func(ctx context.Context, l *live) error { return l.changePrice(ctx) },
	"heal":  func(ctx context.Context, l *live) error { return l.heal(ctx) },
}

// switches are the protections.
var switches = map[string]func(p *Protections) *bool{
	"filter":  func(p *Protections) *bool { return &p.Filter },
	"nulls":   func(p *Protections) *bool { return &p.Nulls },
	"jitter":  func(p *Protections) *bool { return &p.Jitter },
	"lease":   func(p *Protections) *bool { return &p.Lease },
	"local":   func(p *Protections) *bool { return &p.Local },
	"breaker": func(p *Protections) *bool { return &p.Breaker },
}

// press does what a button says.
func (l *live) press(ctx context.Context, name string) error {
	button, ok := buttons[name]
	if !ok {
		return fmt.Errorf("there is no button %q", name)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.show()
	return button(ctx, l)
}

// turn takes a protection off, or puts it on.
func (l *live) turn(ctx context.Context, name string, on bool) error {
	protection, ok := switches[name]
	if !ok {
		return fmt.Errorf("there is no switch %q", name)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.show()
	*protection(&l.settings.Protections) = on
	l.mark(name + map[bool]string{true: " on", false: " off"}[on])
	return l.push(ctx)
}

func (l *live) markOn(what string, on bool) {
	if !on {
		what += " ends"
	}
	l.mark(what)
}

func (l *live) slowRedis(slow bool) {
	l.trouble.SlowRedis = slow
	delay := time.Duration(0)
	if slow {
		delay = l.late
	}
	l.proxy.delay.Store(int64(delay))
}

func (l *live) slowDatabase(slow bool) {
	l.trouble.SlowDatabase = slow
	if l.settings.QueryTime = l.queryTime; slow {
		l.settings.QueryTime = l.slow
	}
}

// kill kills a process of each shop, as a crash would. One of each stays.
func (l *live) kill() error {
	for i := l.processes - 1; i > 0; i-- {
		if l.fleets[leveeSide].processes[i].address() == "" {
			continue
		}
		l.mark(fmt.Sprintf("process %d killed", i+1))
		for _, f := range l.fleets {
			f.processes[i].end((*child).kill)
		}
		return nil
	}
	return errors.New("the last process of each shop stays alive")
}

// heal ends all trouble, puts every protection on, and starts what was killed.
func (l *live) heal(ctx context.Context) error {
	l.mark("healed")
	l.trouble.Flood, l.trouble.RedisGone = false, false
	l.crowd.scraper.Store(false)
	l.proxy.stop(false)
	l.slowRedis(false)
	l.slowDatabase(false)
	l.settings.Protections = allProtections
	err := l.push(ctx)
	for _, f := range l.fleets {
		for _, p := range f.processes {
			if p.address() == "" {
				p.part.Settings = l.settings
				err = errors.Join(err, p.start(ctx))
			}
		}
	}
	return err
}
