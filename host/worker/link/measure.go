package link

import (
	"encoding/json"
	"fmt"
)

// Use is a Measured payload: who the guest process is, and what device memory it has allocated.
type Use struct {
	PID     uint32      `json:"pid"` // as the guest counts; 0: it has not said yet
	Program string      `json:"program"`
	Devices []DeviceUse `json:"devices"`
}

// DeviceUse is device memory in use.
type DeviceUse struct {
	UUID  [16]byte `json:"uuid"`
	Bytes uint64   `json:"bytes"`
}

// maxProgram bounds what a worker tells of its program.
const maxProgram = 4096

// Encode is Use as a payload.
func (u Use) Encode() ([]byte, error) {
	u.Program = u.Program[:min(len(u.Program), maxProgram)]
	return json.Marshal(u)
}

// DecodeUse reads a Measured payload.
func DecodeUse(b []byte) (Use, error) {
	var u Use
	if err := json.Unmarshal(b, &u); err != nil {
		return u, fmt.Errorf("worker's use: %w", err)
	}
	return u, nil
}
