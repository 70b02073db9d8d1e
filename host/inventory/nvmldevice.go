package inventory

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// describe reads all that a guest may ask of device number i of its vGPU. What the device does not
// support stays unknown.
func describe(g gpu, i int) (Device, error) {
	v := Unknown()
	id, err := ParseUUID(g.text("nvmlDeviceGetUUID"))
	if err != nil {
		return v, fmt.Errorf("GPU %d: %w", i, err)
	}
	v.UUID = id
	v.MinorNumber = uint32(i)
	describeBoard(&v, g)
	describeMemory(&v, g)
	describeClocks(&v, g)
	describePower(&v, g)
	describeHealth(&v, g)
	describeModes(&v, g)
	return v, nil
}

// ParseUUID reads "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
func ParseUUID(s string) (id [16]byte, err error) {
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(s, "GPU-"), "-", ""))
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("%q is no GPU's UUID", s)
	}
	copy(id[:], b)
	return id, nil
}

type pci struct{ domain, bus, device, id, subsystem uint32 }

// pciInfo reads an nvmlPciInfo_t.
func pciInfo(g gpu, entry string, args ...uint64) (p pci, ok bool) {
	b := make([]byte, 68)
	if !g.fill(entry, b, args...) {
		return p, false
	}
	le := binary.LittleEndian
	return pci{le.Uint32(b[16:]), le.Uint32(b[20:]), le.Uint32(b[24:]), le.Uint32(b[28:]), le.Uint32(b[32:])}, true
}

func describeBoard(v *Device, g gpu) {
	setText(v.Name[:], g.text("nvmlDeviceGetName"))
	setText(v.Vbios[:], g.text("nvmlDeviceGetVbiosVersion"))
	if p, ok := pciInfo(g, "nvmlDeviceGetPciInfo_v3"); ok {
		v.PCIDomain, v.PCIBus, v.PCIDevice, v.PCIID, v.PCISubsystem = p.domain, p.bus, p.device, p.id, p.subsystem
	}
	v.Major, v.Minor = g.two("nvmlDeviceGetCudaComputeCapability")
	v.Brand = g.number("nvmlDeviceGetBrand")
	v.Architecture = g.number("nvmlDeviceGetArchitecture")
	v.Cores = g.number("nvmlDeviceGetNumGpuCores")
	v.MultiGpuBoard = g.number("nvmlDeviceGetMultiGpuBoard")
	v.Board = g.number("nvmlDeviceGetBoardId")
	v.PcieGen = g.number("nvmlDeviceGetCurrPcieLinkGeneration")
	v.PcieWidth = g.number("nvmlDeviceGetCurrPcieLinkWidth")
	v.PcieMaxGen = g.number("nvmlDeviceGetMaxPcieLinkGeneration")
	v.PcieMaxWidth = g.number("nvmlDeviceGetMaxPcieLinkWidth")
	v.PcieMaxSpeed = g.number("nvmlDeviceGetPcieLinkMaxSpeed")
	v.PcieReplays = g.number("nvmlDeviceGetPcieReplayCounter")
}

func describeMemory(v *Device, g gpu) {
	le := binary.LittleEndian
	v2 := make([]byte, 40)
	le.PutUint32(v2, 40|2<<24) // size and version of nvmlMemory_v2_t
	v1 := make([]byte, 24)
	if g.fill("nvmlDeviceGetMemoryInfo_v2", v2) {
		v.MemoryTotal, v.MemoryReserved, v.MemoryFree = le.Uint64(v2[8:]), le.Uint64(v2[16:]), le.Uint64(v2[24:])
	} else if g.fill("nvmlDeviceGetMemoryInfo", v1) {
		v.MemoryTotal, v.MemoryFree = le.Uint64(v1), le.Uint64(v1[8:])
	}
	bar1 := make([]byte, 24)
	if g.fill("nvmlDeviceGetBAR1MemoryInfo", bar1) {
		v.Bar1Total, v.Bar1Used = le.Uint64(bar1), le.Uint64(bar1[16:])
	}
	v.MemoryBusWidth = g.number("nvmlDeviceGetMemoryBusWidth")
	use := make([]byte, 8)
	if g.fill("nvmlDeviceGetUtilizationRates", use) {
		v.UseGpu, v.UseMemory = le.Uint32(use), le.Uint32(use[4:])
	}
	v.UseEncoder, _ = g.two("nvmlDeviceGetEncoderUtilization")
	v.UseDecoder, _ = g.two("nvmlDeviceGetDecoderUtilization")
	v.UseJpg, _ = g.two("nvmlDeviceGetJpgUtilization")
	v.UseOfa, _ = g.two("nvmlDeviceGetOfaUtilization")
}

func describeClocks(v *Device, g gpu) {
	for i := range v.Clock {
		v.Clock[i] = g.number("nvmlDeviceGetClockInfo", uint64(i))
		v.ClockMax[i] = g.number("nvmlDeviceGetMaxClockInfo", uint64(i))
	}
	for i := range v.ClockApp {
		v.ClockApp[i] = g.number("nvmlDeviceGetApplicationsClock", uint64(i))
		v.ClockAppDefault[i] = g.number("nvmlDeviceGetDefaultApplicationsClock", uint64(i))
	}
	v.ClockReasons = g.long("nvmlDeviceGetCurrentClocksThrottleReasons")
	v.ClockReasonsKnown = g.long("nvmlDeviceGetSupportedClocksThrottleReasons")
	v.Pstate = g.number("nvmlDeviceGetPerformanceState")
}

func describePower(v *Device, g gpu) {
	const onDie = 0
	v.Temperature = g.number("nvmlDeviceGetTemperature", onDie)
	v.TemperatureMemory = field(g, fieldMemoryTemp, 0)
	for i := range v.Threshold {
		v.Threshold[i] = g.number("nvmlDeviceGetTemperatureThreshold", uint64(i))
	}
	margin := make([]byte, 8)
	binary.LittleEndian.PutUint32(margin, 8|1<<24) // size and version of nvmlMarginTemperature_t
	if g.fill("nvmlDeviceGetMarginTemperature", margin) {
		v.Margin = binary.LittleEndian.Uint32(margin[4:])
	}
	for i := range v.ThresholdMargin {
		v.ThresholdMargin[i] = field(g, fieldMargins+uint32(i), 0)
	}
	v.Power = g.number("nvmlDeviceGetPowerUsage")
	v.PowerNow = field(g, fieldPowerNow, 0)
	v.PowerModule = field(g, fieldPowerNow, 1)
	v.PowerMemory = field(g, fieldPower, 2)
	v.PowerLimit = g.number("nvmlDeviceGetEnforcedPowerLimit")
	v.PowerDefault = g.number("nvmlDeviceGetPowerManagementDefaultLimit")
	v.PowerMin, v.PowerMax = g.two("nvmlDeviceGetPowerManagementLimitConstraints")
	v.PowerManaged = g.number("nvmlDeviceGetPowerManagementMode")
	v.Energy = g.long("nvmlDeviceGetTotalEnergyConsumption")
	v.Fan = g.number("nvmlDeviceGetFanSpeed")
	v.Fans = g.number("nvmlDeviceGetNumFans")
}

// field reads a number that has no entry point of its own.
func field(g gpu, id, scope uint32) uint32 {
	const size, result, value = 40, 28, 32
	b := make([]byte, size)
	binary.LittleEndian.PutUint32(b, id)
	binary.LittleEndian.PutUint32(b[4:], scope)
	if !g.fill("nvmlDeviceGetFieldValues", b, 1) || binary.LittleEndian.Uint32(b[result:]) != 0 {
		return Unknown32
	}
	return binary.LittleEndian.Uint32(b[value:])
}

func describeHealth(v *Device, g gpu) {
	const corrected, uncorrected, sinceStart, ever = 0, 1, 0, 1
	const errors = "nvmlDeviceGetTotalEccErrors"
	v.EccCurrent, v.EccPending = g.two("nvmlDeviceGetEccMode")
	rows := [4][]byte{make([]byte, 4), make([]byte, 4), make([]byte, 4), make([]byte, 4)}
	if g.call("nvmlDeviceGetRemappedRows", nil, rows[:]...) == Success {
		for i := range v.Remapped {
			v.Remapped[i] = binary.LittleEndian.Uint32(rows[i])
		}
	}
	v.EccDefault = g.number("nvmlDeviceGetDefaultEccMode")
	v.EccCorrected = g.long(errors, corrected, sinceStart)
	v.EccUncorrected = g.long(errors, uncorrected, sinceStart)
	v.EccCorrectedTotal = g.long(errors, corrected, ever)
	v.EccUncorrectedTotal = g.long(errors, uncorrected, ever)
}

// describeModes: nothing of a vGPU is accounted in the driver.
func describeModes(v *Device, g gpu) {
	v.MigCurrent, v.MigPending = g.two("nvmlDeviceGetMigMode")
	v.ComputeMode = g.number("nvmlDeviceGetComputeMode")
	v.Persistence = g.number("nvmlDeviceGetPersistenceMode")
	v.Display = g.number("nvmlDeviceGetDisplayActive")
	v.Virtualization = g.number("nvmlDeviceGetVirtualizationMode")
	v.Accounting = 0
	v.PcieTx = g.number("nvmlDeviceGetPcieThroughput", 0)
	v.PcieRx = g.number("nvmlDeviceGetPcieThroughput", 1)
}

// FormatUUID is the inverse of ParseUUID.
func FormatUUID(id [16]byte) string {
	s := hex.EncodeToString(id[:])
	return "GPU-" + s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
