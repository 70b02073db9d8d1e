package vf

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Take takes a function out of the VM that has it. It is called for those that were given through
// libvirt, and is content if the VM has it no more.
type Take func(context.Context, *Assignment) error

// Released is what came back.
type Released struct {
	Assignment
	// Gone says that the function itself is no more: nothing had to be put back.
	Gone bool `json:"gone,omitempty"`
}

// Release takes functions back: one, as PF/INDEX or an address, or all of a VM. Their settings are
// what they were before.
func (m *Manager) Release(ctx context.Context, key string, take Take) ([]Released, error) {
	k, unlock, err := m.book.open(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	which, err := m.named(k, key)
	if err != nil {
		return nil, err
	}
	var done []Released
	for _, a := range which {
		if err := m.releaseOne(ctx, k, a, take); err != nil {
			return done, err
		}
		done = append(done, Released{Assignment: a, Gone: !m.exists(a.Address)})
	}
	return done, nil
}

// named are the records that a key means.
func (m *Manager) named(k *book, key string) ([]Assignment, error) {
	var of []Assignment
	for _, a := range k.Assignments {
		if a.VM == key || string(a.Address) == key {
			of = append(of, a)
		}
	}
	if len(of) > 0 {
		return of, nil
	}
	list, err := m.list(k)
	if err != nil {
		return nil, err
	}
	pf, v, err := find(list, key)
	switch {
	case err != nil && (errors.Is(err, ErrNoSRIOV) || errors.Is(err, ErrValue)):
		return nil, fmt.Errorf("%w: %s is no VM that has one, nor a function: `causeway vf list` shows them", ErrNotFound, key)
	case err != nil:
		return nil, err
	case v.State == Taken:
		return nil, fmt.Errorf("%w: %s/%d (%s) is %s, which did not get it from causeway: end that process", ErrInUse, pf.Name, v.Index, v.Address, v.Whose())
	case v.Record == nil:
		return nil, fmt.Errorf("%w: %s/%d (%s) is free", ErrNotAssigned, pf.Name, v.Index, v.Address)
	}
	return []Assignment{*v.Record}, nil
}

func (m *Manager) releaseOne(ctx context.Context, k *book, a Assignment, take Take) error {
	if a.Use == ForVM && (a.Live || a.Config) && take != nil {
		if err := take(ctx, &a); err != nil {
			return err
		}
	}
	if v, err := m.again(k, a.Address); err == nil && v.Holder != 0 {
		return fmt.Errorf("%w: process %d has %s open, of VM %s: detach it there, or stop the VM, and release it again", ErrInUse, v.Holder, a.Address, a.VM)
	}
	k.find(a.Address).Unfinished = true
	if err := m.book.write(k); err != nil {
		return err
	}
	return m.putBack(ctx, k, k.find(a.Address))
}

func (m *Manager) exists(a Address) bool {
	list, err := m.sys.physical()
	if err != nil {
		return false
	}
	_, _, err = find(list, string(a))
	return err == nil
}

// putBack gives a function the settings that it had, and forgets its record.
func (m *Manager) putBack(ctx context.Context, k *book, a *Assignment) error {
	list, err := m.list(k)
	if err != nil {
		return err
	}
	if pf, v, err := find(list, string(a.Address)); err == nil {
		for _, one := range a.Back.each() {
			// What was refused when it was to be set is refused now, and is as it was.
			if v.Attributes != nil && v.Attributes.shows(one.Settings) {
				continue
			}
			if err := m.setOne(ctx, pf, v, one.Settings); err != nil && !unsupported(err) {
				return explain(fmt.Sprintf("put back %s of %s/%d", one.name, pf.Name, v.Index), err)
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	k.remove(a.Address)
	return m.book.write(k)
}

// ReleaseEnded takes back what VMs had that have ended, and what is unfinished because who gave it
// has died. vm is one VM, or empty for all. A VM that has a function in its definition keeps it.
func (m *Manager) ReleaseEnded(ctx context.Context, vm string) ([]Released, error) {
	if k, err := m.book.read(); err == nil && len(k.Assignments) == 0 {
		return nil, nil // the usual case takes no lock and makes no file
	}
	k, unlock, err := m.book.open(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	before := slices.Clone(k.Assignments)
	if err := m.sweep(ctx, k, func(a *Assignment) bool { return vm == "" || a.VM == vm }); err != nil {
		return nil, err
	}
	var done []Released
	for _, a := range before {
		if k.find(a.Address) == nil {
			done = append(done, Released{Assignment: a, Gone: !m.exists(a.Address)})
		}
	}
	return done, nil
}

// sweep puts back every record that has nobody any more. The lock is held, so nothing that is
// unfinished is being worked on.
func (m *Manager) sweep(ctx context.Context, k *book, which func(*Assignment) bool) error {
	list, err := m.list(k)
	if err != nil {
		return err
	}
	for _, a := range slices.Clone(k.Assignments) {
		if !which(&a) {
			continue
		}
		_, v, err := find(list, string(a.Address))
		gone := err != nil
		if gone || v.State == Ended || v.State == Unfinished && v.Holder == 0 && !a.Config {
			if err := m.putBack(ctx, k, k.find(a.Address)); err != nil {
				return err
			}
		}
	}
	return nil
}
