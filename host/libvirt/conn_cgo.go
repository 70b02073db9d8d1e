//go:build libvirt_dlopen || libvirt

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"libvirt.org/go/libvirt"
)

// Open finds a domain by its name or UUID. An empty URI is libvirt's default, which
// LIBVIRT_DEFAULT_URI may say, else qemu:///system.
func Open(ctx context.Context, uri, domain string) (Domain, error) {
	if u, err := url.Parse(uri); err != nil {
		return nil, fmt.Errorf("libvirt's address %q: %w", uri, err)
	} else if u.Host != "" {
		return nil, fmt.Errorf("libvirt's address %q: %w", uri, ErrRemote)
	}
	c, err := connect(ctx, uri)
	if err != nil {
		return nil, connectError(err)
	}
	d, err := c.LookupDomainByName(domain)
	if err != nil {
		if byID, err2 := c.LookupDomainByUUIDString(domain); err2 == nil {
			d, err = byID, nil
		}
	}
	if err != nil {
		_, _ = c.Close()
		if is(err, libvirt.ERR_NO_DOMAIN) {
			return nil, fmt.Errorf("%w: %s: `virsh list --all` shows what there is", ErrNoDomain, domain)
		}
		return nil, fmt.Errorf("find domain %s: %w", domain, plain(err))
	}
	r := &realDomain{conn: c, dom: d}
	if r.name, err = d.GetName(); err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("name of the domain: %w", plain(err))
	}
	return r, nil
}

// connectLimit is for a connection: libvirt asks each QEMU what it can do when it is first started.
const connectLimit = time.Minute

// connect connects to libvirt, which waits without a limit, and past signals, for one that hangs.
func connect(ctx context.Context, uri string) (*libvirt.Connect, error) {
	within, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	type connected struct {
		c   *libvirt.Connect
		err error
	}
	done := make(chan connected, 1)
	go func() {
		c, err := libvirt.NewConnect(uri)
		done <- connected{c, err}
	}()
	select {
	case r := <-done:
		return r.c, r.err
	case <-within.Done():
		go func() {
			if r := <-done; r.c != nil {
				_, _ = r.c.Close()
			}
		}()
		if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, ctx.Err()
		}
		return nil, ErrSilent
	}
}

// connectError tells a missing library, of which the binding has dlopen's words only, from a
// libvirt that does not answer.
func connectError(err error) error {
	var e libvirt.Error
	switch errors.As(err, &e); {
	case strings.HasPrefix(e.Message, "Failed to open libvirt.so"):
		return ErrNoLibrary
	case strings.HasPrefix(e.Message, "Failed to connect socket"):
		return fmt.Errorf("connect to libvirt: %w: start it with `systemctl start libvirtd` (or virtqemud.socket)", plain(err))
	}
	return fmt.Errorf("connect to libvirt: %w", plain(err))
}

// realDomain is one of a real libvirt.
type realDomain struct {
	conn *libvirt.Connect
	dom  *libvirt.Domain
	name string
}

// plainError is libvirt's message without numbers; the error itself is behind it.
type plainError struct{ err libvirt.Error }

func (e *plainError) Error() string { return e.err.Message }
func (e *plainError) Unwrap() error { return e.err }

func plain(err error) error {
	var e libvirt.Error
	if errors.As(err, &e) && e.Message != "" {
		return &plainError{e}
	}
	return err
}

func is(err error, code libvirt.ErrorNumber) bool {
	var e libvirt.Error
	return errors.As(err, &e) && e.Code == code
}

func (d *realDomain) Name() string { return d.name }

func (d *realDomain) Places() (w Where, err error) {
	active, err := d.dom.IsActive()
	if err != nil {
		return 0, fmt.Errorf("state of domain %s: %w", d.name, plain(err))
	}
	persistent, err := d.dom.IsPersistent()
	if err != nil {
		return 0, fmt.Errorf("state of domain %s: %w", d.name, plain(err))
	}
	if active {
		w |= Live
	}
	if persistent {
		w |= Config
	}
	return w, nil
}

func (d *realDomain) XML(w Where) (string, error) {
	var flags libvirt.DomainXMLFlags
	if w == Config {
		flags = libvirt.DOMAIN_XML_INACTIVE
	}
	s, err := d.dom.GetXMLDesc(flags)
	if err != nil {
		return "", fmt.Errorf("description of domain %s: %w", d.name, plain(err))
	}
	return s, nil
}

func deviceFlags(w Where) (f libvirt.DomainDeviceModifyFlags) {
	if w&Live != 0 {
		f |= libvirt.DOMAIN_DEVICE_MODIFY_LIVE
	}
	if w&Config != 0 {
		f |= libvirt.DOMAIN_DEVICE_MODIFY_CONFIG
	}
	return f
}

func (d *realDomain) Attach(device string, w Where) error {
	if err := d.dom.AttachDeviceFlags(device, deviceFlags(w)); err != nil {
		return fmt.Errorf("plug in: %w", plain(err))
	}
	return nil
}

func (d *realDomain) Detach(device string, w Where) error {
	if err := d.dom.DetachDeviceFlags(device, deviceFlags(w)); err != nil {
		return fmt.Errorf("unplug: %w", plain(err))
	}
	return nil
}

func (d *realDomain) SetMetadata(element string, w Where) error {
	var impact libvirt.DomainModificationImpact
	if w&Live != 0 {
		impact |= libvirt.DOMAIN_AFFECT_LIVE
	}
	if w&Config != 0 {
		impact |= libvirt.DOMAIN_AFFECT_CONFIG
	}
	err := d.dom.SetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, element, Prefix, Namespace, impact)
	if err != nil && !(element == "" && is(err, libvirt.ERR_NO_DOMAIN_METADATA)) {
		return fmt.Errorf("metadata of domain %s: %w", d.name, plain(err))
	}
	return nil
}

func (d *realDomain) Close() error {
	err := d.dom.Free()
	_, err2 := d.conn.Close()
	return errors.Join(err, err2)
}
