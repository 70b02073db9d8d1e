package ibv

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"causeway/remote/verbs"
)

// sysfs is where the kernel shows RDMA devices.
const sysfs = "/sys/class/infiniband"

// mostGIDs bounds a port's addresses, and mostPKeys the partitions that it may be a member of.
const (
	mostGIDs  = 1024
	mostPKeys = 1024
)

// found is a device and its active ports, whose MTU is not known yet.
type found struct {
	device string
	ports  []verbs.Port
}

// scan finds the active ports that are of a partition. name: all; one device's (mlx5_0), or one
// port's (mlx5_0/2).
func scan(sys fs.FS, name string, partition verbs.Partition) ([]found, error) {
	device, port, _ := strings.Cut(name, "/")
	entries, err := fs.ReadDir(sys, ".")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("RDMA devices: %w", err)
	}
	var all []found
	var outside []string // ports that are not of the partition
	for _, e := range entries {
		if device != "" && e.Name() != device {
			continue
		}
		f := found{device: e.Name()}
		ports, err := fs.ReadDir(sys, path.Join(e.Name(), "ports"))
		if err != nil {
			return nil, fmt.Errorf("RDMA device %s: %w", e.Name(), err)
		}
		for _, p := range ports {
			if port != "" && p.Name() != port {
				continue
			}
			one, ok := scanPort(sys, e.Name(), p.Name())
			switch {
			case !ok:
			case !inPartition(sys, &one, partition):
				outside = append(outside, path.Join(e.Name(), p.Name()))
			default:
				f.ports = append(f.ports, one)
			}
		}
		if len(f.ports) > 0 {
			all = append(all, f)
		}
	}
	switch {
	case len(all) > 0:
		return all, nil
	case len(outside) > 0:
		return nil, fmt.Errorf("%w %v (%s)", ErrNoPartition, partition, strings.Join(outside, ", "))
	case name != "":
		return nil, fmt.Errorf("%w %q", ErrNoDevice, name)
	}
	return nil, ErrNoDevice
}

// scanPort reads one port; false: it is not active, or of a link that is not known.
func scanPort(sys fs.FS, device, port string) (verbs.Port, bool) {
	dir := path.Join(device, "ports", port)
	p := verbs.Port{Device: device}
	p.Number, _ = strconv.Atoi(port)
	if state := text(sys, dir, "state"); p.Number == 0 || !strings.Contains(state, "ACTIVE") || strings.Contains(state, "DEFER") {
		return p, false
	}
	switch text(sys, dir, "link_layer") {
	case "InfiniBand":
		p.Link = verbs.InfiniBand
	case "Ethernet":
		p.Link = verbs.Ethernet
	default:
		return p, false
	}
	p.Software = text(sys, device, "parent") != "" // the network device that it is on
	lid, _ := strconv.ParseUint(text(sys, dir, "lid"), 0, 16)
	p.LID = uint16(lid)
	for i := range mostGIDs {
		s := text(sys, dir, fmt.Sprintf("gids/%d", i))
		if s == "" {
			break
		}
		b, err := hex.DecodeString(strings.ReplaceAll(s, ":", ""))
		if err != nil || len(b) != 16 || [16]byte(b) == [16]byte{} {
			continue
		}
		p.GIDs = append(p.GIDs, verbs.GID{Index: i, Addr: [16]byte(b), RoCEv2: text(sys, dir, fmt.Sprintf("gid_attrs/types/%d", i)) == "RoCE v2"})
	}
	return p, true
}

// inPartition finds a partition in the port's table, as a full member of it if the port is that,
// too; 0: the table's first. false: the port is not of it.
func inPartition(sys fs.FS, p *verbs.Port, want verbs.Partition) bool {
	for i := range mostPKeys {
		s := text(sys, path.Join(p.Device, "ports", strconv.Itoa(p.Number)), fmt.Sprintf("pkeys/%d", i))
		if s == "" {
			break
		}
		key, err := verbs.ParsePartition(s)
		if want == 0 {
			// An empty first entry is 0, as no table is: the queue pairs say what comes of it.
			p.Partition = key
			return true
		}
		if err == nil && key.Same(want) && (p.Partition == 0 || key.Full() && !p.Partition.Full()) {
			p.PKey, p.Partition = i, key
		}
	}
	return want == 0 || p.Partition != 0
}

// text is a file's line; empty: there is none, or it cannot be read.
func text(sys fs.FS, dir, name string) string {
	b, err := fs.ReadFile(sys, path.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
