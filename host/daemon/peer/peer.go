// Package peer says who is at the other end of a Unix socket, and what the configuration lets them
// do.
package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"time"

	"causeway/host/daemon/config"
	"causeway/remote/sys"
)

// Role is what somebody may do. Each may do what the lower ones may.
type Role int

// Roles.
const (
	None Role = iota
	Viewer
	Operator
	Admin
)

func (r Role) String() string { return [...]string{"none", "viewer", "operator", "admin"}[r] }

// Peer is who connected.
type Peer struct {
	PID      int
	UID, GID uint32
	// Groups are the supplementary groups that the process has (SO_PEERGROUPS).
	Groups []uint32
}

func (p Peer) String() string {
	name := strconv.Itoa(int(p.UID))
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	return fmt.Sprintf("user %s (process %d)", name, p.PID)
}

// Of asks the kernel about a connection, as it was when it was made.
func Of(c *net.UnixConn) (Peer, error) {
	cred, err := sys.Peer(c)
	if err != nil {
		return Peer{}, err
	}
	p := Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid}
	p.Groups, err = sys.PeerGroups(c)
	return p, err
}

// Serving is who listens at a socket of either kind, as it was when it began to.
func Serving(path string) (Peer, error) {
	var errs []error
	for _, network := range []string{"unix", "unixpacket"} {
		c, err := net.DialTimeout(network, path, time.Second)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer c.Close()
		return Of(c.(*net.UnixConn))
	}
	return Peer{}, fmt.Errorf("who serves %s: %w", path, errors.Join(errs...))
}

// Policy is who has which role. It is not changed once it is in use.
type Policy struct {
	users, groups map[uint32]Role
	// Database finds the groups that the host's user database gives a user, for those who were
	// added to a group after they logged in.
	Database func(uid uint32) []uint32
}

// NewPolicy reads the configuration's roles. root and the user of this process are admins.
func NewPolicy(r config.Roles) (*Policy, error) {
	p := &Policy{users: map[uint32]Role{}, groups: map[uint32]Role{}, Database: database}
	for role, list := range map[Role][]string{Viewer: r.Viewer, Operator: r.Operator, Admin: r.Admin} {
		for _, who := range list {
			id, group, err := config.Lookup(who)
			if err != nil {
				return nil, err
			}
			to := p.users
			if group {
				to = p.groups
			}
			to[id] = max(to[id], role)
		}
	}
	p.users[0], p.users[uint32(os.Geteuid())] = Admin, Admin
	return p, nil
}

// Role is the highest role that somebody has.
func (p *Policy) Role(who Peer) Role {
	role := max(p.users[who.UID], p.groups[who.GID])
	for _, g := range who.Groups {
		role = max(role, p.groups[g])
	}
	if role == Admin || len(p.groups) == 0 {
		return role
	}
	for _, g := range p.Database(who.UID) {
		role = max(role, p.groups[g])
	}
	return role
}

func database(uid uint32) []uint32 {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil
	}
	var list []uint32
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			list = append(list, uint32(n))
		}
	}
	return slices.Compact(list)
}

type key struct{}

// With keeps who made a connection beside its requests.
func With(ctx context.Context, p Peer) context.Context { return context.WithValue(ctx, key{}, p) }

// From is who made the connection of a request.
func From(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(key{}).(Peer)
	return p, ok
}
