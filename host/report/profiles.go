package report

import (
	"fmt"
	"io"
	"slices"

	"causeway/host/api"
)

// Profiles writes a line for each profile on each GPU. A room of -1 is not known.
func Profiles(w io.Writer, list []api.Profile, gpus []api.GPU) error {
	var rows [][]string
	for i := range list {
		p := &list[i]
		head := []string{clean(p.Name), p.Profile.Memory.String(), p.Share.String(), percent(uint32(p.Cap))}
		for j := range p.On {
			on := &p.On[j]
			name := on.GPU
			if at := slices.IndexFunc(gpus, func(g api.GPU) bool { return g.ID == on.GPU }); at >= 0 {
				name = gpuName(&gpus[at])
			}
			memory, room := Bytes(on.Memory), number(on.Room)
			if on.Room < 0 {
				room = "-"
			}
			if on.Why != "" {
				memory, room = "-", "0: "+sentence(on.Why)
			}
			rows = append(rows, append(slices.Clone(head), name, memory, room))
		}
		if len(p.On) == 0 {
			rows = append(rows, append(head, "-", "-", "-"))
		}
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "no profile: the table [profiles] of causewayd.toml has none")
		return err
	}
	return grid(w, []string{"PROFILE", "PART", "SHARE", "CAP", "GPU", "MEMORY", "ROOM FOR"}, rows)
}
