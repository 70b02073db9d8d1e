package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"causeway/host/daemon/peer"
	"causeway/host/daemon/process"
	"causeway/host/daemon/systemd"
	"causeway/host/sandbox/cgroup"
	"causeway/host/schedule"
)

// scheduler is what is known of the process that shares GPU time.
type scheduler struct {
	mu       sync.Mutex
	pid      int
	silent   bool // it runs, and answers nothing
	restarts uint64
}

// schedulerRecord is what causewayd writes about it.
type schedulerRecord struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

func (d *Daemon) schedulerSocket() string { return filepath.Join(d.run, "scheduler.sock") }

// schedulerLog is its log's name.
const schedulerLog = "scheduler"

// Pauses between two starts of a scheduler that ends by itself.
const (
	firstPause = 500 * time.Millisecond
	mostPause  = time.Minute
)

// routineScheduler keeps one scheduler running. Device processes connect to it whenever it is
// there.
func (d *Daemon) routineScheduler() {
	pause := firstPause
	for d.ctx.Err() == nil {
		begun := time.Now()
		p, err := d.haveScheduler()
		if err == nil {
			d.noteScheduler(p.PID(), false)
			if d.whileSchedules(p) {
				err = errors.New(p.Reason())
			}
			d.noteScheduler(0, false)
			_ = p.Close()
		}
		if d.ctx.Err() != nil {
			return
		}
		if time.Since(begun) > mostPause {
			pause = firstPause
		}
		d.log.Error("the scheduler is gone: shares and caps do not hold until it is back", "error", err, "next", pause)
		select {
		case <-time.After(pause):
		case <-d.ctx.Done():
		}
		pause = min(2*pause, mostPause)
		d.sched.mu.Lock()
		d.sched.restarts++
		d.sched.mu.Unlock()
	}
}

// whileSchedules returns when the scheduler has ended, or we are to. One that runs and answers
// nothing is told of, and left to who has stopped it: sessions that wait give it up by themselves.
func (d *Daemon) whileSchedules(p *process.Process) (ended bool) {
	for {
		select {
		case <-time.After(cmp.Or(d.opt.SchedulerLook, schedulerLook)):
		case <-p.Done():
			return true
		case <-d.ctx.Done():
			return false
		}
		_, err := schedule.ReadStatus(d.ctx, d.schedulerSocket())
		d.noteScheduler(p.PID(), errors.Is(err, schedule.ErrSilent))
	}
}

// schedulerLook is how often the scheduler is asked for a sign of life.
const schedulerLook = 10 * time.Second

// noteScheduler notes which process it is, 0: none, and whether that answers nothing.
func (d *Daemon) noteScheduler(pid int, silent bool) {
	d.sched.mu.Lock()
	was := d.sched.silent
	d.sched.pid, d.sched.silent = pid, silent
	d.sched.mu.Unlock()
	switch {
	case silent && !was:
		d.log.Error("the scheduler answers nothing: shares and caps do not hold until it does", "pid", pid,
			"remedy", fmt.Sprintf("`kill -CONT %d` if it is stopped, else end it by `kill -KILL %[1]d`: another one is started", pid))
	case was && !silent && pid != 0:
		d.log.Info("the scheduler answers again", "pid", pid)
	}
}

// haveScheduler finds the scheduler again or starts one.
func (d *Daemon) haveScheduler() (*process.Process, error) {
	file := filepath.Join(d.run, "scheduler.json")
	var rec schedulerRecord
	if readJSON(file, &rec) == nil && rec.PID > 0 && rec.Start > 0 {
		if p, err := process.Adopt(rec.PID, rec.Start); err == nil {
			d.log.Info("scheduler found", "pid", p.PID())
			return p, nil
		}
	}
	if process.Listening(d.schedulerSocket()) {
		// An operator's, or ours if causewayd ended before it wrote that down.
		who, err := peer.Serving(d.schedulerSocket())
		if err != nil {
			return nil, err
		}
		d.log.Info("a scheduler runs that causewayd did not start", "pid", who.PID)
		return process.Adopt(who.PID, 0)
	}
	out, _, err := d.openLog(schedulerLog)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p, err := process.Start(process.Command{
		Path: d.opt.Program, Args: []string{"scheduler", "--socket", d.schedulerSocket()}, Env: d.environment(), Output: out,
	})
	if err != nil {
		return nil, fmt.Errorf("start the scheduler: %w", err)
	}
	if err := writeJSON(file, schedulerRecord{PID: p.PID(), Start: p.StartTime()}); err != nil {
		err = errors.Join(fmt.Errorf("write down the scheduler: %w", err), p.End(context.Background(), d.opt.Grace))
		return nil, errors.Join(err, p.Close())
	}
	d.scope(d.ctx, systemd.UnitName("scheduler"), "Causeway scheduler", p, cgroup.Limits{})
	d.log.Info("scheduler started", "pid", p.PID())
	return p, nil
}
