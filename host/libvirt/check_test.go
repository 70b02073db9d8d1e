package libvirt

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// shell is a domain that can have a vGPU while it runs.
const shell = `<domain type='kvm'><name>vm1</name>
<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
<os><type arch='x86_64' machine='pc-q35-10.0'>hvm</type></os>
<cpu></cpu>
<devices><controller type='pci' index='0' model='pcie-root'/>
<controller type='pci' index='1' model='pcie-root-port'><address type='pci' bus='0x00'/></controller>
<controller type='pci' index='10' model='pcie-root-port'><address type='pci' bus='0x00'/></controller>
<disk><address type='pci' bus='0x01'/></disk>
</devices></domain>`

func TestCheck(t *testing.T) {
	const backing = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"
	full := "<disk><address type='pci' bus='0x0a'/></disk></devices>"
	for name, c := range map[string]struct {
		old, new   string
		live, cold string // text that the error has; empty: none
	}{
		"good":                  {"", "", "", ""},
		"no memoryBacking":      {backing, "", "<source type='memfd'></source>\n    <access mode='shared'></access>", "below <domain>, add"},
		"private":               {"'shared'", "'private'", "<access mode='shared'>", "replace <memoryBacking>"},
		"hugepages, private":    {backing, "<memoryBacking><hugepages/></memoryBacking>", "<hugepages></hugepages>", "<access mode='shared'>"},
		"hugepages, shared":     {"<source type='memfd'/>", "<hugepages/>", "", ""},
		"a file":                {"'memfd'", "'file'", "", ""},
		"anonymous":             {"'memfd'", "'anonymous'", "file on disk", "<source type='memfd'>"},
		"no source":             {"<source type='memfd'/>", "", "file on disk", "file on disk"},
		"private cell":          {"<cpu>", "<cpu><numa><cell id='0' memory='1' memAccess='shared'/><cell id='1' memory='1' memAccess='private'/></numa>", "NUMA cell", "<cell id='1' memory='1' memAccess='shared'>"},
		"shared cells":          {"<access mode='shared'/></memoryBacking>", "</memoryBacking><cpu><numa><cell id='0' memory='1' memAccess='shared'/></numa></cpu>", "", ""},
		"private module":        {"</devices>", "<memory model='dimm' access='private'/></devices>", "<memory model='dimm' access='shared'>", "memory module"},
		"SEV":                   {"</devices>", "</devices><launchSecurity type='sev'/>", `encrypted (launchSecurity type "sev")`, "encrypted"},
		"Xen":                   {"type='kvm'", "type='xen'", "need QEMU", "need QEMU"},
		"no free port":          {"</devices>", full, "<controller type='pci' model='pcie-root-port'/>", ""},
		"port without hot-plug": {"<controller type='pci' index='10' model='pcie-root-port'>", "<controller type='pci' index='10' model='pcie-root-port'><target hotplug='off'/>", "no PCI root port", ""},
		"old machine, no ports": {"pc-q35-10.0", "pc-i440fx-10.0", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			doc := shell
			if c.old != "" {
				if !strings.Contains(doc, c.old) {
					t.Fatalf("the shell has no %q", c.old)
				}
				doc = strings.Replace(doc, c.old, c.new, 1)
			}
			d, err := Parse([]byte(doc))
			if err != nil {
				t.Fatal(err)
			}
			for live, want := range map[bool]string{true: c.live, false: c.cold} {
				err := d.Check(live)
				var lacks *NotReadyError
				if want == "" && err != nil || want != "" && (!errors.As(err, &lacks) || !strings.Contains(err.Error(), want)) {
					t.Errorf("live %v: %v\nwant %q", live, err, want)
				}
			}
		})
	}
}

// What the error says to write makes the domain good.
func TestRemedyHelps(t *testing.T) {
	doc := strings.Replace(shell, "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>", "<memoryBacking><hugepages/><nosharepages/></memoryBacking>", 1)
	d, err := Parse([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	var lacks *NotReadyError
	if !errors.As(d.Check(true), &lacks) || len(lacks.Lacks) != 1 {
		t.Fatalf("%+v", lacks)
	}
	doc = strings.Replace(doc, "<memoryBacking><hugepages/><nosharepages/></memoryBacking>", lacks.Lacks[0].XML, 1)
	if d, err = Parse([]byte(doc)); err != nil || d.Check(true) != nil || !strings.Contains(doc, "nosharepages") {
		t.Errorf("%v %v\n%s", err, d.Check(true), doc)
	}
}

func TestEverythingIsSaid(t *testing.T) {
	b, err := os.ReadFile("testdata/running.xml")
	if err != nil {
		t.Fatal(err)
	}
	d, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	var lacks *NotReadyError
	if !errors.As(d.Check(true), &lacks) || len(lacks.Lacks) != 2 {
		t.Errorf("%v", d.Check(true))
	}
}
