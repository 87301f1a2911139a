package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// othersShare is the count of a report that says which share of the processors other programs took.
const othersShare = "others"

// usage is what of the processors' time has been used: by all, and by this process and the children it has waited for.
type usage struct {
	at        time.Time
	all, ours float64 // seconds
}

// ownTime returns how long this process has had a processor.
func ownTime() time.Duration { return time.Duration(consumed(syscall.RUSAGE_SELF)) }

// consumed returns nanoseconds.
func consumed(who int) int64 {
	var r syscall.Rusage
	if syscall.Getrusage(who, &r) != nil {
		return 0
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

// usageNow returns NaN for what the system does not tell.
func usageNow() usage {
	u := usage{at: time.Now(), all: math.NaN()}
	u.ours = float64(consumed(syscall.RUSAGE_SELF)+consumed(syscall.RUSAGE_CHILDREN)) / 1e9
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u
	}
	// The first line: cpu, and hundredths of a second in user, nice, system, idle, iowait, irq, softirq, steal.
	var ticks [8]float64
	_, err = fmt.Sscanf(string(data), "cpu %f %f %f %f %f %f %f %f", &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7])
	if err == nil {
		u.all = (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7]) / 100
	}
	return u
}

// others returns the share of all processors that other programs have taken since before.
func (u usage) others(before usage) float64 {
	used := (u.all - before.all) - (u.ours - before.ours)
	return max(0, used/u.at.Sub(before.at).Seconds()/float64(runtime.NumCPU()))
}

// processor returns the name of the processor, as far as the system tells.
func processor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOOS + " " + runtime.GOARCH
	}
	defer f.Close()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		if name, value, _ := strings.Cut(scan.Text(), ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func redisVersion() string {
	out, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		return "redis-server of unknown version"
	}
	fields := strings.Fields(string(out))
	return "redis-server " + strings.TrimPrefix(fields[min(2, len(fields)-1)], "v=")
}
