package report

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"text/template"

	"causeway/host/api"
)

// PsRow is what a template of `causeway ps --format` has of a vGPU, written for people as in the
// table; numbers are in JSON (--json).
type PsRow struct {
	Key, VM, Name string
	GPU, State    string
	Used, Memory  string // Memory is the limit, or none
	Share, Cap    string
	Sessions, Age string
	PID, Socket   string
	UUID, Why     string
}

// PsFields lists them.
func PsFields() string {
	var list []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[PsRow]()) {
		list = append(list, "."+f.Name)
	}
	return strings.Join(list, " ")
}

// Format prints vGPUs by a template, as docker's --format does.
type Format struct {
	t     *template.Template
	table bool
}

// ParseFormat reads a template; "table ..." has heads above. \t and \n may be written as such.
func ParseFormat(text string) (*Format, error) {
	text = strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(text)
	text, table := strings.CutPrefix(text, "table ")
	t, err := template.New("format").Funcs(template.FuncMap{
		"json": func(v any) (string, error) { b, err := json.Marshal(v); return string(b), err },
	}).Parse(text)
	if err == nil {
		err = t.Execute(io.Discard, PsRow{}) // also where there is no vGPU
	}
	if err != nil {
		return nil, fmt.Errorf("%w: a vGPU has %s", err, PsFields())
	}
	return &Format{t, table}, nil
}

// Write writes a line for each vGPU of a reading.
func (f *Format) Write(w io.Writer, r *Reading) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(row PsRow) error {
		if err := f.t.Execute(out, row); err != nil {
			return err
		}
		_, err := fmt.Fprintln(out)
		return err
	}
	if f.table {
		var heads PsRow
		v := reflect.ValueOf(&heads).Elem()
		for i := range v.NumField() {
			v.Field(i).SetString(strings.ToUpper(v.Type().Field(i).Name))
		}
		if err := line(heads); err != nil {
			return err
		}
	}
	for i := range r.VGPUs {
		if err := line(psRow(r, &r.VGPUs[i])); err != nil {
			return err
		}
	}
	return out.Flush()
}

func psRow(r *Reading, v *api.VGPU) PsRow {
	row := PsRow{
		Key: clean(v.Spec.Key()), VM: clean(v.Spec.VM), Name: clean(v.Spec.Name), GPU: r.gpuOf(v), State: string(v.State), Used: "-", Memory: "none",
		Share: shareOf(v), Cap: capOf(v), Sessions: "-", Age: ageOf(r, v), PID: number(v.PID), Socket: v.Socket, UUID: v.GPU, Why: sentence(v.Why),
	}
	if s := v.Status; s != nil {
		row.Used, row.Sessions = Bytes(s.Memory), number(len(s.Sessions))
	}
	if m := memoryOf(v); m > 0 {
		row.Memory = Bytes(m)
	}
	return row
}
