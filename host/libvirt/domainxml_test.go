package libvirt

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"causeway/host/api"
	"causeway/host/limit"
)

// with makes a domain of metadata and devices.
func with(metadata, devices string) string {
	return `<domain type='kvm'><name>vm1</name><metadata>` + metadata + `</metadata><devices>` + devices + `</devices></domain>`
}

const declared = "<causeway:vgpus xmlns:causeway='urn:causeway:vgpu:1'>%</causeway:vgpus>"

func wishing(vgpus string) string { return with(strings.Replace(declared, "%", vgpus, 1), "") }

func TestParse(t *testing.T) {
	yes := true
	for name, c := range map[string]struct {
		doc  string
		want []api.Wish
		err  string
	}{
		"nothing":  {with("", ""), nil, ""},
		"others'":  {with("<a:b xmlns:a='urn:x'><vgpu name='q'/></a:b>", ""), nil, ""},
		"empty":    {wishing(""), nil, ""},
		"defaults": {wishing("<causeway:vgpu/>"), []api.Wish{{VM: "vm1", Name: "gpu0"}}, ""},
		"everything": {
			wishing("<causeway:vgpu name='gpu1' gpu='H200' memory='16GiB' share='50' cap='25' mig='1g.18gb' remote='gpu:7000' sessions='9'/>"),
			[]api.Wish{{VM: "vm1", Name: "gpu1", GPU: "H200", MIG: "1g.18gb", Remote: "gpu:7000",
				Change: api.Limits{Memory: 16 << 30, Share: 50, Cap: 25, Sessions: 9}.Change()}}, ""},
		"empty means default": {wishing("<causeway:vgpu name='' gpu='' memory='' share='' cap='' mig='' remote='' sessions=''/>"),
			[]api.Wish{{VM: "vm1", Name: "gpu0"}}, ""},
		"default namespace": {with("<vgpus xmlns='urn:causeway:vgpu:1'><vgpu name='a'/><vgpu name='b'/></vgpus>", ""),
			[]api.Wish{{VM: "vm1", Name: "a"}, {VM: "vm1", Name: "b"}}, ""},
		"declared further out": {`<domain type='kvm' xmlns:c='urn:causeway:vgpu:1'><name> vm1
			</name><metadata><c:vgpus><c:vgpu cap='5%'/></c:vgpus></metadata></domain>`,
			[]api.Wish{{VM: "vm1", Name: "gpu0", Change: api.Limits{Cap: 5}.Change()}}, ""},
		"migratable":         {wishing("<causeway:vgpu migratable='yes'/>"), []api.Wish{{VM: "vm1", Name: "gpu0", Migratable: &yes}}, ""},
		"perhaps migratable": {wishing("<causeway:vgpu migratable='perhaps'/>"), nil, "use yes or no"},
		"misspelt limit":     {wishing("<causeway:vgpu memroy='1GiB'/>"), nil, "no attribute memroy"},
		"misspelt element":   {wishing("<causeway:gpu/>"), nil, "unknown element <gpu>"},
		"element in a vGPU":  {wishing("<causeway:vgpu><causeway:memory/></causeway:vgpu>"), nil, "unknown element <memory>"},
		"attribute of vgpus": {strings.Replace(wishing(""), "<causeway:vgpus ", "<causeway:vgpus gpu='any' ", 1), nil, "takes no attribute gpu"},
		"other root":         {with("<c:vgpu xmlns:c='urn:causeway:vgpu:1'/>", ""), nil, "only <vgpus> is known"},
		"two roots":          {with(declared+declared, ""), nil, "2 elements <vgpus>"},
		"twice the same":     {wishing("<causeway:vgpu/><causeway:vgpu name='gpu0'/>"), nil, "two vGPUs are named gpu0"},
		"wrong size":         {wishing("<causeway:vgpu memory='16 elephants'/>"), nil, "is no size"},
		"size without unit":  {wishing("<causeway:vgpu memory='16'/>"), nil, "write 16GiB"},
		"no limits": {wishing("<causeway:vgpu memory='none' cap='none' profile='half'/>"),
			[]api.Wish{{VM: "vm1", Name: "gpu0", Change: api.Change{Profile: "half", Memory: new(limit.Memory), Cap: new(limit.Cap)}}}, ""},
		"zero cap":             {wishing("<causeway:vgpu cap='0'/>"), nil, "or none"},
		"too many sessions":    {wishing("<causeway:vgpu sessions='1001'/>"), nil, "1 to 1000"},
		"zero share":           {wishing("<causeway:vgpu share='0'/>"), nil, "1 to 10000"},
		"negative cap":         {wishing("<causeway:vgpu cap='-1'/>"), nil, "1 to 100"},
		"cap":                  {wishing("<causeway:vgpu cap='101'/>"), nil, "a cap of 101"},
		"path in a name":       {wishing("<causeway:vgpu name='../../x'/>"), nil, "not a name"},
		"attribute with space": {wishing("<causeway:vgpu causeway:name='a'/>"), nil, "no attribute name"},
		"no domain":            {"<network/>", nil, "expected element type <domain>"},
		"no XML":               {"gpu0", nil, "EOF"},
		"open":                 {"<domain><metadata>", nil, "unexpected EOF"},
		"too long":             {"<domain>" + strings.Repeat(" ", MaxXML), nil, "more than"},
		"65 vGPUs":             {wishing(strings.Repeat("<causeway:vgpu/>", 65)), nil, "65 vGPUs"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Parse([]byte(c.doc))
			if c.err != "" {
				if !errors.Is(err, ErrXML) || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("%v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(d.VGPUs, c.want) {
				t.Errorf("%+v\nwant %+v", d.VGPUs, c.want)
			}
		})
	}
}

func TestFilesystems(t *testing.T) {
	d, err := Parse([]byte(with("", `<disk type='file'><source file='/x'/></disk>
		<filesystem type='mount'><source dir='/a'/><target dir='a'/></filesystem>
		<filesystem type='mount'><driver type='virtiofs' iommu='on'/><source socket='/run/b.sock'/><target dir='b'/><alias name='fs1'/></filesystem>
		<filesystem type='mount'><driver type='virtiofs' queue='1024'/><source socket='/run/c.sock'/><target dir='c'/></filesystem>`)))
	if err != nil {
		t.Fatal(err)
	}
	want := []Filesystem{{Socket: "/run/b.sock", Target: "b", Alias: "fs1", IOMMU: true}, {Socket: "/run/c.sock", Target: "c"}}
	if !reflect.DeepEqual(d.Filesystems, want) {
		t.Errorf("%+v", d.Filesystems)
	}
	for name, used := range map[string]bool{"a": true, "b": true, "c": true, "d": false, "": false} {
		if d.uses(name) != used {
			t.Errorf("uses %q: %v", name, !used)
		}
	}
}

// What is written is read again as it was, in both forms. TestFilesystemXML: it looks as libvirt
// writes it, and means what was asked for, whatever the socket's name.
func TestFilesystemXML(t *testing.T) {
	got, err := FilesystemXML("/run/causeway/vm1/gpu0.sock", "gpu0")
	want := `<filesystem type='mount'>
  <driver type='virtiofs' queue='1024'/>
  <source socket='/run/causeway/vm1/gpu0.sock'/>
  <target dir='gpu0'/>
</filesystem>`
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
	odd := `/run/"a" & 'b'/></x>.sock`
	got, err = FilesystemXML(odd, "gpu0")
	if err != nil {
		t.Fatal(err)
	}
	d, err := Parse([]byte(with("", got)))
	if err != nil || len(d.Filesystems) != 1 || d.Filesystems[0].Socket != odd {
		t.Errorf("%v: %+v of %s", err, d, got)
	}
}

func TestMetadataRoundTrip(t *testing.T) {
	list := []api.Wish{
		{VM: "vm1", Name: "gpu0", GPU: "any"},
		{VM: "vm1", Name: "gpu1", Migratable: new(bool)},
		{VM: "vm1", Name: "a.b+c:d@e", GPU: "<&'\">", MIG: "1g.18gb", Remote: "[::1]:7", Change: api.Limits{Memory: 5<<30 + 1, Share: 10000, Cap: 100, Sessions: 1000}.Change()},
		{VM: "vm1", Name: "b", Change: api.Change{Profile: "half", Memory: new(limit.Memory), Cap: new(limit.Cap)}},
	}
	d, err := Parse([]byte(with(MetadataXML(list), "")))
	if err != nil || !reflect.DeepEqual(d.VGPUs, list) {
		t.Errorf("%+v %v", d, err)
	}
	if got := bareMetadata(nil); got != "" {
		t.Errorf("nothing is written as %q", got)
	}
	if got := bareMetadata(list[:1]); got != "<vgpus><vgpu name='gpu0' gpu='any'/></vgpus>" {
		t.Error(got)
	}
}

func FuzzParse(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.xml")
	if err != nil || len(paths) == 0 {
		f.Fatal("no domains in testdata", err)
	}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		d, err := Parse(doc)
		if err != nil {
			if !errors.Is(err, ErrXML) {
				t.Errorf("%v is no ErrXML", err)
			}
			return
		}
		for _, s := range d.VGPUs {
			if err := s.Check(); err != nil {
				t.Errorf("let through: %v", err)
			}
		}
		for _, s := range d.specs("/run/causeway") {
			if path := s.SocketPath("/run/causeway"); !strings.HasPrefix(path, "/run/causeway/"+d.Name+"/") {
				t.Errorf("socket %q", path)
			}
		}
		_ = d.Check(true)
		_ = d.Check(false)
		if len(d.VGPUs) > 0 {
			again, err := Parse([]byte("<domain><name>" + d.VGPUs[0].VM + "</name><metadata>" + MetadataXML(d.VGPUs) + "</metadata></domain>"))
			if err != nil || !reflect.DeepEqual(again.VGPUs, d.VGPUs) {
				t.Errorf("written and read again: %v\n%+v\n%+v", err, again, d.VGPUs)
			}
		}
	})
}
