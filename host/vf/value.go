package vf

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Address is a PCI function's, as sysfs writes it: 0000:41:00.2. Only ParseAddress makes one.
type Address string

// ParseAddress reads an address; the domain may be left out.
func ParseAddress(s string) (Address, error) {
	t := s
	if strings.Count(t, ":") == 1 {
		t = "0000:" + t
	}
	n, err := fieldsOf(t)
	if err != nil || n.String() != strings.ToLower(t) {
		return "", fmt.Errorf("%w: %q is no PCI address like 0000:41:00.2", ErrValue, s)
	}
	return Address(n.String()), nil
}

// Numbers are an address's.
type Numbers struct{ Domain, Bus, Slot, Function uint }

// String is the address's text.
func (n Numbers) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", n.Domain, n.Bus, n.Slot, n.Function)
}

// Numbers are those of an address that ParseAddress made.
func (a Address) Numbers() Numbers {
	n, _ := fieldsOf(string(a)) // it was read before
	return n
}

func fieldsOf(s string) (n Numbers, err error) {
	parts := strings.FieldsFunc(s, func(r rune) bool { return r == ':' || r == '.' })
	if len(parts) != 4 {
		return n, ErrValue
	}
	for i, f := range []struct {
		to   *uint
		bits int
	}{{&n.Domain, 32}, {&n.Bus, 8}, {&n.Slot, 5}, {&n.Function, 3}} {
		v, err := strconv.ParseUint(parts[i], 16, f.bits)
		if err != nil {
			return n, ErrValue
		}
		*f.to = uint(v)
	}
	return n, nil
}

// MAC is the address of an Ethernet port in the form 02:00:00:00:00:01; empty: none is said. Only
// ParseMAC makes one.
type MAC string

// ParseMAC reads one that a port may have: not a group's. All zeros has the guest's driver choose
// one.
func ParseMAC(s string) (MAC, error) {
	m, err := net.ParseMAC(s)
	if err != nil || len(m) != 6 || m[0]&1 != 0 {
		return "", fmt.Errorf("%w: %q is no MAC address of a port, like 02:00:00:00:00:01 (the lowest bit of its first byte is 0)", ErrValue, s)
	}
	return MAC(m.String()), nil
}

// GUID names an InfiniBand node or port; 0: none is said.
type GUID uint64

// ParseGUID reads 00:11:22:33:44:55:66:77, 0011:2233:4455:6677 or 0x0011223344556677.
func ParseGUID(s string) (GUID, error) {
	digits := strings.TrimPrefix(strings.ToLower(s), "0x")
	if colons := strings.Count(digits, ":"); colons == 7 || colons == 3 {
		parts := strings.Split(digits, ":")
		for i, p := range parts {
			want := 16 / len(parts)
			if p == "" || len(p) > want {
				return 0, badGUID(s)
			}
			parts[i] = strings.Repeat("0", want-len(p)) + p
		}
		digits = strings.Join(parts, "")
	}
	v, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || len(digits) != 16 {
		return 0, badGUID(s)
	}
	return GUID(v), nil
}

func badGUID(s string) error {
	return fmt.Errorf("%w: %q is no GUID like 00:11:22:33:44:55:66:77", ErrValue, s)
}

// String is the GUID as mlx5's sysfs takes it.
func (g GUID) String() string {
	return net.HardwareAddr(g.bytes()).String()
}

func (g GUID) bytes() []byte {
	b := make([]byte, 8)
	for i := range b {
		b[i] = byte(g >> (56 - 8*i))
	}
	return b
}

// MarshalText implements encoding.TextMarshaler.
func (g GUID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (g *GUID) UnmarshalText(b []byte) (err error) {
	*g, err = ParseGUID(string(b))
	return err
}

// LinkState is what a function's port shows: auto as the physical port's, or always up or down.
type LinkState string

// Link states, as `ip link` names them.
const (
	Auto    LinkState = "auto"
	Enable  LinkState = "enable"
	Disable LinkState = "disable"
)

// policies are their names in mlx5's sysfs.
var policies = map[LinkState]string{Auto: "Follow", Enable: "Up", Disable: "Down"}

// ParseLinkState reads one.
func ParseLinkState(s string) (LinkState, error) {
	if _, ok := policies[LinkState(s)]; !ok {
		return "", fmt.Errorf("%w: link state %q: auto, enable or disable", ErrValue, s)
	}
	return LinkState(s), nil
}

// Settings are what is to be changed of a function: what is nil or empty stays.
type Settings struct {
	MAC        MAC       `json:"mac,omitempty"`
	VLAN       *int      `json:"vlan,omitempty"` // 0: none
	QoS        *int      `json:"qos,omitempty"`
	MinRate    *uint32   `json:"min_rate,omitempty"` // Mbit/s, 0: none is promised
	MaxRate    *uint32   `json:"max_rate,omitempty"` // Mbit/s, 0: no limit
	Trust      *bool     `json:"trust,omitempty"`
	SpoofCheck *bool     `json:"spoof_check,omitempty"`
	State      LinkState `json:"state,omitempty"`
	NodeGUID   GUID      `json:"node_guid,omitempty"`
	PortGUID   GUID      `json:"port_guid,omitempty"`
	// For each place of its table the physical port's place, where the driver maps them.
	Partitions []int `json:"partitions,omitempty"`
}

// Largest values.
const (
	maxVLAN       = 4094
	maxQoS        = 7
	maxPartitions = 128
)

// Check says what no device takes.
func (s *Settings) Check() error {
	switch {
	case s.VLAN != nil && (*s.VLAN < 0 || *s.VLAN > maxVLAN):
		return fmt.Errorf("%w: VLAN %d: 1 to %d, 0 for none", ErrValue, *s.VLAN, maxVLAN)
	case s.QoS != nil && (*s.QoS < 0 || *s.QoS > maxQoS):
		return fmt.Errorf("%w: priority %d: 0 to %d", ErrValue, *s.QoS, maxQoS)
	case s.QoS != nil && s.VLAN == nil:
		return fmt.Errorf("%w: a priority is one of a VLAN's frames: say the VLAN as well", ErrValue)
	case s.MinRate != nil && s.MaxRate != nil && *s.MaxRate != 0 && *s.MinRate > *s.MaxRate:
		return fmt.Errorf("%w: %d Mbit/s are promised and %d allowed", ErrValue, *s.MinRate, *s.MaxRate)
	case len(s.Partitions) > maxPartitions:
		return fmt.Errorf("%w: %d partitions, at most %d", ErrValue, len(s.Partitions), maxPartitions)
	}
	if s.MAC != "" {
		if m, err := ParseMAC(string(s.MAC)); err != nil || m != s.MAC {
			return fmt.Errorf("%w: MAC address %q", ErrValue, s.MAC)
		}
	}
	if s.State != "" {
		if _, err := ParseLinkState(string(s.State)); err != nil {
			return err
		}
	}
	for _, p := range s.Partitions {
		if p < 0 || p >= maxPartitions {
			return fmt.Errorf("%w: place %d of a port's table of partitions: 0 to %d", ErrValue, p, maxPartitions-1)
		}
	}
	return nil
}

// setting is one change that is made at once, and how it is called.
type setting struct {
	name string
	Settings
}

// each are the changes one by one, in the order in which they are made: a port is not up before it
// is what it is to be.
func (s Settings) each() (list []setting) {
	add := func(given bool, name string, one Settings) {
		if given {
			list = append(list, setting{name, one})
		}
	}
	add(s.NodeGUID != 0, "the node GUID", Settings{NodeGUID: s.NodeGUID})
	add(s.PortGUID != 0, "the port GUID", Settings{PortGUID: s.PortGUID})
	add(s.Partitions != nil, "the partitions", Settings{Partitions: s.Partitions})
	add(s.MAC != "", "the MAC address", Settings{MAC: s.MAC})
	add(s.VLAN != nil, "the VLAN", Settings{VLAN: s.VLAN, QoS: s.QoS})
	add(s.MinRate != nil || s.MaxRate != nil, "the rate", Settings{MinRate: s.MinRate, MaxRate: s.MaxRate})
	add(s.Trust != nil, "trust", Settings{Trust: s.Trust})
	add(s.SpoofCheck != nil, "the spoof check", Settings{SpoofCheck: s.SpoofCheck})
	add(s.State != "", "the link state", Settings{State: s.State})
	return list
}

// Attributes are what a function is like. What its driver does not tell is missing.
type Attributes struct {
	MAC        MAC       `json:"mac,omitempty"`
	VLAN       int       `json:"vlan"`
	QoS        int       `json:"qos"`
	MinRate    uint32    `json:"min_rate"`
	MaxRate    uint32    `json:"max_rate"`
	Trust      bool      `json:"trust"`
	SpoofCheck bool      `json:"spoof_check"`
	State      LinkState `json:"state,omitempty"`
	NodeGUID   GUID      `json:"node_guid,omitempty"`
	PortGUID   GUID      `json:"port_guid,omitempty"`
	Partitions []int     `json:"partitions,omitempty"`
}

// back are the settings that put what s changes back to a.
func (a *Attributes) back(s Settings) (b Settings) {
	if s.MAC != "" {
		b.MAC = a.MAC
	}
	if s.VLAN != nil {
		b.VLAN, b.QoS = &a.VLAN, &a.QoS
	}
	if s.MinRate != nil || s.MaxRate != nil {
		b.MinRate, b.MaxRate = &a.MinRate, &a.MaxRate
	}
	if s.Trust != nil {
		b.Trust = &a.Trust
	}
	if s.SpoofCheck != nil {
		b.SpoofCheck = &a.SpoofCheck
	}
	if s.State != "" {
		b.State = a.State
	}
	if s.NodeGUID != 0 {
		b.NodeGUID = a.NodeGUID
	}
	if s.PortGUID != 0 {
		b.PortGUID = a.PortGUID
	}
	if s.Partitions != nil {
		b.Partitions = a.Partitions
	}
	return b
}

// shows says that a is as s says, all of which a driver shows.
func (a *Attributes) shows(s Settings) bool {
	return s.Partitions == nil && (s.NodeGUID == 0 || a.NodeGUID == s.NodeGUID) && (s.PortGUID == 0 || a.PortGUID == s.PortGUID) && a.took(s)
}

// took says whether a may be what was set. GUIDs are shown by few drivers.
func (a *Attributes) took(s Settings) bool {
	switch {
	case s.MAC != "" && a.MAC != s.MAC, s.VLAN != nil && a.VLAN != *s.VLAN, s.QoS != nil && a.QoS != *s.QoS:
		return false
	case s.MinRate != nil && a.MinRate != *s.MinRate, s.MaxRate != nil && a.MaxRate != *s.MaxRate:
		return false
	case s.Trust != nil && a.Trust != *s.Trust, s.SpoofCheck != nil && a.SpoofCheck != *s.SpoofCheck:
		return false
	case s.State != "" && a.State != s.State:
		return false
	case s.NodeGUID != 0 && a.NodeGUID != 0 && a.NodeGUID != s.NodeGUID, s.PortGUID != 0 && a.PortGUID != 0 && a.PortGUID != s.PortGUID:
		return false
	}
	return true
}
